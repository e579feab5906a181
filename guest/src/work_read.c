/* Read: RESULT with the stat record, the bytes on channel 1, a second RESULT (for the agent only) when all are sent. */
#include <errno.h>
#include <fcntl.h>
#include <sys/sendfile.h>
#include <unistd.h>

#include "worker.h"

static int open_regular(struct stat *st)
{
    int flags = O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | (flag(FILE_NOFOLLOW) ? O_NOFOLLOW : 0);
    int fd = open(worker.path, flags);

    if (fd < 0)
        worker_fail(errno == ENXIO ? "type" : "path", errno, "cannot open");   /* ENXIO: a socket */
    if (fstat(fd, st) < 0)
        worker_fail("path", errno, "cannot stat");
    if (S_ISDIR(st->st_mode))
        worker_fail("type", EISDIR, "is a folder");
    if (!S_ISREG(st->st_mode))
        worker_fail("type", EINVAL, "is not a regular file");
    return fd;
}

static void send_copied(int fd, uint64_t left)
{
    while (left > 0) {
        ssize_t n = read(fd, io_buffer, left < IO_BYTES ? (size_t)left : IO_BYTES);
        if (n < 0 && errno == EINTR) {
            worker_check();
            continue;
        }
        if (n < 0)
            worker_fail("read", errno, "cannot read");
        if (n == 0)
            return;
        output_write(io_buffer, (size_t)n);
        left -= (uint64_t)n;
    }
}

/* The page cache's pages go into the pipe without a copy, where the file system can do that. */
static void send_bytes(int fd, uint64_t left)
{
    while (left > 0) {
        worker_check();
        ssize_t n = sendfile(worker.out_fd, fd, NULL, left < (1u << 20) ? (size_t)left : 1u << 20);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EINVAL || errno == ENOSYS)) {
            send_copied(fd, left);
            return;
        }
        if (n < 0)
            worker_fail(errno == EPIPE ? "aborted" : "read", errno, "cannot read");
        if (n == 0)
            return;
        worker.sent += (uint64_t)n;
        left -= (uint64_t)n;
    }
}

void work_read(void)
{
    static uint8_t result[REPORT_MAX], record[REPORT_MAX - 256];
    struct tlv_writer w = { .data = result, .size = sizeof result };
    struct tlv_writer entry = { .data = record, .size = sizeof record };
    struct tlv_writer nothing = { 0 };
    struct stat st;
    int fd = open_regular(&st);
    uint64_t left = worker.r->length;

    if (worker.r->offset > 0 && lseek(fd, (off_t)worker.r->offset, SEEK_SET) < 0)
        worker_fail("read", errno, "cannot seek");
    /* what grows while it is read ends where it ended at first; files of /proc have no size and are read to their end */
    if (left == UNLIMITED && st.st_size > 0)
        left = worker.r->offset < (uint64_t)st.st_size ? (uint64_t)st.st_size - worker.r->offset : 0;
    posix_fadvise(fd, (off_t)worker.r->offset, 0, POSIX_FADV_SEQUENTIAL);
    record_put(&entry, worker.path, AT_FDCWD, worker.path, &st);
    tlv_put(&w, 1, entry.data, entry.used);
    base_put(&w);
    worker_result(&w);
    send_bytes(fd, left);
    worker_done(&nothing);
}
