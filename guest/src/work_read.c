/* Read: RESULT with the stat record, the bytes on channel 1, a second RESULT (for the agent only) when all are sent. */
#include <errno.h>
#include <fcntl.h>
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

void work_read(void)
{
    static uint8_t result[REPORT_MAX], record[REPORT_MAX - 256];
    struct tlv_writer w = { .data = result, .size = sizeof result };
    struct tlv_writer entry = { .data = record, .size = sizeof record };
    struct tlv_writer nothing = { 0 };
    struct stat st;
    int fd = open_regular(&st);
    uint64_t left = worker.r->length, size = (uint64_t)st.st_size;
    uint64_t rest = worker.r->offset < size ? size - worker.r->offset : 0;

    if (worker.r->offset > 0 && lseek(fd, (off_t)worker.r->offset, SEEK_SET) < 0)
        worker_fail("read", errno, "cannot seek");
    /* what grows while it is read ends where it ended at first; files of /proc have no size and are read to their end */
    if (size > 0 && left > rest)
        left = rest;
    record_put(&entry, worker.path, AT_FDCWD, worker.path, &st);
    tlv_put(&w, 1, entry.data, entry.used);
    base_put(&w);
    worker_result(&w);
    (void)send_file(fd, left, rest == 0 || left <= worker.r->cache_bytes);   /* the node misses what it lacks */
    worker_done(&nothing);
}
