/* Write: atomic by a temporary file and rename, or in place. Done means: on disk, file and folder.
 *
 * The temporary file lies beside the final target, so a last symlink is followed by hand, each step from the folder that
 * holds the link. An existing target keeps its mode, and its owner where the kernel lets us.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "worker.h"

#define LINKS_MAX 40
#define WRITEBACK_BYTES (8u << 20)
#ifndef RENAME_NOREPLACE
#define RENAME_NOREPLACE 1
#endif

struct target {
    int folder;
    char name[256];
    bool exists;
    struct stat st;
};

static char temporary[TEMPORARY_SIZE];
static int temporary_folder = -1;

static void undo_temporary(void)
{
    if (temporary_folder >= 0)
        unlinkat(temporary_folder, temporary, 0);
}

static void find_target(struct target *t)
{
    char path[PATH_BYTES_MAX + 1], link[PATH_BYTES_MAX + 1];
    int at = AT_FDCWD;

    memcpy(path, worker.path, sizeof path);
    for (int hops = 0; hops <= LINKS_MAX; hops++) {
        int error = open_parent(at, path, flag(FILE_PARENTS), &t->folder, t->name);
        if (error != 0)
            worker_fail(error == EISDIR ? "type" : "path", error, "cannot enter the file's folder");
        if (at != AT_FDCWD)
            close(at);
        t->exists = fstatat(t->folder, t->name, &t->st, AT_SYMLINK_NOFOLLOW) == 0;
        if (!t->exists && errno != ENOENT)
            worker_fail("path", errno, "cannot stat");
        if (t->exists && flag(FILE_EXCLUSIVE))
            worker_fail("path", EEXIST, "exists already");
        if (!t->exists || !S_ISLNK(t->st.st_mode))
            return;
        if (flag(FILE_NOFOLLOW))
            break;
        ssize_t n = readlinkat(t->folder, t->name, link, PATH_BYTES_MAX);
        if (n <= 0)
            worker_fail("path", n == 0 ? ENOENT : errno, "cannot read a link");
        memcpy(path, link, (size_t)n);
        path[n] = 0;
        at = t->folder;
    }
    worker_fail("path", ELOOP, "is a link, or too many of them");
}

static uint64_t receive(int fd)
{
    const struct file_request *r = worker.r;
    uint64_t count = 0;
    size_t n;

    while ((n = input_read(io_buffer, IO_BYTES)) > 0) {
        if (n > r->max_bytes - count)
            worker_fail("limit", EFBIG, "more bytes than allowed");
        for (size_t done = 0; done < n;) {
            ssize_t part = write(fd, io_buffer + done, n - done);
            if (part < 0 && errno != EINTR)
                worker_fail("write", errno, "cannot write");
            if (part > 0)
                done += (size_t)part;
            worker_check();
        }
        /* let the disk begin now: the fsync at the end is short then */
        if (count / WRITEBACK_BYTES != (count + n) / WRITEBACK_BYTES)
            (void)sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE);
        count += n;
    }
    if (r->expected != UNLIMITED && r->expected != count)
        worker_fail("size", EINVAL, "not the expected number of bytes");
    return count;
}

_Noreturn static void finish(const struct target *t, uint64_t bytes, bool created)
{
    static uint8_t result[REPORT_MAX];
    struct tlv_writer w = { .data = result, .size = sizeof result };

    record_result(&w, worker.path, t->folder, t->name);
    tlv_put_u64(&w, 2, bytes);
    tlv_put_u64(&w, 3, created);
    worker_done(&w);
}

static void move_into_place(const struct target *t)
{
    if (!flag(FILE_EXCLUSIVE)) {
        if (renameat(t->folder, temporary, t->folder, t->name) < 0)
            worker_fail("path", errno, "cannot rename");
        return;
    }
    if (syscall(SYS_renameat2, t->folder, temporary, t->folder, t->name, RENAME_NOREPLACE) == 0)
        return;
    if (errno != EINVAL && errno != ENOSYS)
        worker_fail("path", errno, "cannot rename");
    /* a file system without RENAME_NOREPLACE: link(2) does not replace either */
    if (linkat(t->folder, temporary, t->folder, t->name, 0) < 0)
        worker_fail("path", errno, "cannot link");
    unlinkat(t->folder, temporary, 0);
}

static void give_or_fail(int fd)
{
    int error = give(fd);

    if (error != 0)
        worker_fail("write", error, "cannot give the file to its owner");
}

static void write_atomic(void)
{
    struct target t;
    int fd;

    find_target(&t);
    if (t.exists && !S_ISREG(t.st.st_mode))
        worker_fail("type", S_ISDIR(t.st.st_mode) ? EISDIR : EINVAL, "is not a regular file");
    if (t.exists && faccessat(t.folder, t.name, W_OK, 0) < 0)
        worker_fail("path", errno, "may not be written");
    temporary_name(temporary);
    temporary_folder = t.folder;
    worker.undo = undo_temporary;
    fd = openat(t.folder, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        worker_fail("path", errno, "cannot create a file in this folder");
    uint64_t bytes = receive(fd);
    if (t.exists && fchown(fd, t.st.st_uid, t.st.st_gid) < 0 && errno != EPERM && errno != EINVAL)
        worker_fail("write", errno, "cannot set the owner");
    if (!t.exists)
        give_or_fail(fd);
    if (fchmod(fd, t.exists ? t.st.st_mode & 0777 : wanted_mode(0666)) < 0)
        worker_fail("write", errno, "cannot set the mode");
    attributes_replace(fd);
    if (fsync(fd) < 0)
        worker_fail("write", errno, "cannot sync the file");
    worker_check();   /* the last moment for an abort */
    move_into_place(&t);
    worker.undo = NULL;
    int error = sync_folder(t.folder);
    if (error != 0)
        worker_fail("write", error, "cannot sync the folder");
    finish(&t, bytes, !t.exists);
}

static int open_in_place(struct target *t)
{
    int flags = O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | O_NOFOLLOW, fd;
    struct stat st;

    find_target(t);
    if (t->exists && !S_ISREG(t->st.st_mode))
        worker_fail("type", S_ISDIR(t->st.st_mode) ? EISDIR : EINVAL, "is not a regular file");
    fd = openat(t->folder, t->name, flags | (t->exists ? 0 : O_CREAT | O_EXCL), wanted_mode(0666));
    if (fd < 0)
        worker_fail(errno == ENXIO ? "type" : "path", errno, "cannot open for writing");
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        worker_fail("type", EINVAL, "is not a regular file");
    return fd;
}

/* Owner and mode before the first byte, exactly (a default ACL of the folder may have taken bits), and in one change of
 * them where one will do: whoever watches the folder is told of each. */
static void settle_new(int fd)
{
    struct stat st;

    if (worker.gives)
        give_or_fail(fd);
    if (fstat(fd, &st) == 0 && worker.gives && (st.st_mode & 07777) == wanted_mode(0666))
        return;
    if (fchmod(fd, wanted_mode(0666)) < 0)
        worker_fail("write", errno, "cannot set the mode");
}

static void write_in_place(void)
{
    struct target t;
    int fd = open_in_place(&t);

    if (!t.exists)
        settle_new(fd);
    else if (flag(FILE_TRUNCATE) && ftruncate(fd, 0) < 0)
        worker_fail("write", errno, "cannot truncate");
    attributes_replace(fd);
    if (worker.r->offset > 0 && lseek(fd, (off_t)worker.r->offset, SEEK_SET) < 0)
        worker_fail("write", errno, "cannot seek");
    uint64_t bytes = receive(fd);
    if (fsync(fd) < 0)
        worker_fail("write", errno, "cannot sync the file");
    int error = t.exists ? 0 : sync_folder(t.folder);
    if (error != 0)
        worker_fail("write", error, "cannot sync the folder");
    finish(&t, bytes, !t.exists);
}

void work_write(void)
{
    if (flag(FILE_IN_PLACE))
        write_in_place();
    write_atomic();
    _exit(0);
}
