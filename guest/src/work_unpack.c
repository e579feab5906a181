/* Archive in: everything is unpacked into a folder of its own, checked and limited as it is read, and moved into place
 * when the whole archive was good. Nothing is ever created through a link, neither the archive's nor the target's.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "tar.h"
#include "unpack.h"

static struct tar_reader tar;
static struct stage stage;
static uint64_t entries, bytes;

static void undo_stage(void) { (void)remove_tree(stage.beside, stage.name, true); }

static void count_entry(void)
{
    if (entries >= worker.r->max_entries)
        worker_fail("limit", E2BIG, "more entries than allowed");
    entries++;
}

/* The folder of an entry, from the stage down, one part at a time and never through a link. Kept for the next entry,
 * which most often lies in the same one. `path` is cut at its last slash and restored. */
static int enter(char *path, bool create, const char **name)
{
    static char kept_path[TAR_PATH_MAX + 1];
    static int kept = -1;
    char *slash = strrchr(path, '/');

    *name = slash == NULL ? path : slash + 1;
    if (slash == NULL)
        return stage.fd;
    *slash = 0;
    if (kept >= 0 && strcmp(kept_path, path) == 0) {
        *slash = '/';
        return kept;
    }
    if (kept >= 0)
        close(kept);
    kept = -1;
    int at = stage.fd;
    for (char *part = path; part != NULL;) {
        char *next = strchr(part, '/');
        if (next != NULL)
            *next = 0;
        int fd = openat(at, part, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0 && errno == ENOENT && create) {
            count_entry();   /* a thousand folders in one long name are a thousand entries */
            if (mkdirat(at, part, 0755) < 0)
                worker_fail("write", errno, "cannot create a folder");
            fd = openat(at, part, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        }
        if (fd < 0)
            worker_fail("archive", errno, "an entry leads through a link, a file or nothing");
        if (at != stage.fd)
            close(at);
        at = fd;
        if (next != NULL)
            *next++ = '/';
        part = next;
    }
    memcpy(kept_path, path, strlen(path) + 1);
    kept = at;
    *slash = '/';
    return kept;
}

/* A later entry of the same name replaces an earlier one, unless that is a folder. */
static void make_room(int folder, const char *name)
{
    if (unlinkat(folder, name, 0) < 0 && errno != ENOENT)
        worker_fail("archive", errno, "an entry would replace a folder");
}

static void set_time(int folder, const char *name, const struct tar_entry *e)
{
    struct timespec times[2] = { { .tv_nsec = UTIME_OMIT }, { .tv_sec = e->mtime_s, .tv_nsec = e->mtime_ns } };

    (void)utimensat(folder, name, times, AT_SYMLINK_NOFOLLOW);   /* a time out of the file system's range is no fault */
}

static void unpack_link(const struct tar_entry *e, int folder, const char *name)
{
    static char from[TAR_PATH_MAX + 1];
    const char *from_name;
    struct stat st;

    if (e->type == TAR_SYMLINK) {
        make_room(folder, name);
        if (symlinkat(e->link, folder, name) < 0)
            worker_fail("write", errno, "cannot create a link");
        set_time(folder, name, e);
        return;
    }
    folder = dup(folder);   /* looking for the source may close the kept one */
    if (folder < 0)
        worker_fail("write", errno, "no descriptors");
    memcpy(from, e->link, sizeof from);
    int from_folder = enter(from, false, &from_name);
    if (fstatat(from_folder, from_name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode))
        worker_fail("archive", EINVAL, "a hard link leads to nothing in the archive");
    make_room(folder, name);
    if (linkat(from_folder, from_name, folder, name, 0) < 0)
        worker_fail(errno == ENOENT ? "archive" : "write", errno, "cannot create a hard link");
    close(folder);
}

static void unpack_folder(const struct tar_entry *e, int folder, const char *name)
{
    struct stat st;

    if (e->path[0] == 0)
        return;
    if (mkdirat(folder, name, 0755) < 0 && errno != EEXIST)
        worker_fail("write", errno, "cannot create a folder");
    if (fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISDIR(st.st_mode))
        worker_fail("archive", ENOTDIR, "a folder would replace something else");
    /* the owner keeps all rights on folders: their contents are still to come */
    if (fchmodat(folder, name, (e->mode & 0777) | 0700, 0) < 0)
        worker_fail("write", errno, "cannot set a folder's mode");
}

static int begin_file(const struct tar_entry *e, int folder, const char *name)
{
    if (e->size > worker.r->max_bytes - bytes)
        worker_fail("limit", EFBIG, "more bytes than allowed");
    bytes += e->size;
    make_room(folder, name);
    int fd = openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        worker_fail("write", errno, "cannot create a file");
    return fd;
}

static void end_file(int fd, const struct tar_entry *e)
{
    struct timespec times[2] = { { .tv_nsec = UTIME_OMIT }, { .tv_sec = e->mtime_s, .tv_nsec = e->mtime_ns } };

    if (fchmod(fd, e->mode & 0777) < 0)
        worker_fail("write", errno, "cannot set a file's mode");
    (void)futimens(fd, times);
    close(fd);
}

static int unpack_entry(struct tar_entry *e)
{
    const char *name;

    count_entry();
    int folder = enter(e->path, true, &name);
    switch (e->type) {
    case TAR_FOLDER: unpack_folder(e, folder, name); return -1;
    case TAR_FILE: return begin_file(e, folder, name);
    default: unpack_link(e, folder, name); return -1;
    }
}

static void write_all(int fd, const uint8_t *data, size_t length)
{
    while (length > 0) {
        ssize_t n = write(fd, data, length);
        if (n < 0 && errno != EINTR)
            worker_fail("write", errno, "cannot write");
        if (n > 0) {
            data += n;
            length -= (size_t)n;
        }
        worker_check();
    }
}

static void unpack(void)
{
    uint64_t input = 0;
    size_t n;
    int fd = -1;

    tar_reader_init(&tar);
    while ((n = input_read(io_buffer, IO_BYTES)) > 0) {
        const uint8_t *data = io_buffer, *slice = NULL;
        size_t length = n, slice_length = 0;
        enum tar_event event;
        input += n;
        while ((event = tar_next(&tar, &data, &length, &slice, &slice_length)) != TAR_MORE) {
            if (event == TAR_BAD)
                worker_fail("archive", EINVAL, tar.error);
            if (event == TAR_ENTRY)
                fd = unpack_entry(&tar.entry);
            if (event == TAR_DATA)
                write_all(fd, slice, slice_length);
            if (fd >= 0 && tar.left == 0) {
                end_file(fd, &tar.entry);
                fd = -1;
            }
        }
    }
    if (fd >= 0 || !tar_complete(&tar))
        worker_fail("archive", EINVAL, "the archive is cut off");
    if (worker.r->expected != UNLIMITED && worker.r->expected != input)
        worker_fail("size", EINVAL, "not the expected number of bytes");
}

void work_archive_in(void)
{
    uint8_t result[64];
    struct tlv_writer w = { .data = result, .size = sizeof result };

    stage_open(&stage);
    worker.undo = undo_stage;
    stage_make(&stage);
    unpack();
    if (syncfs(stage.fd) < 0)   /* one call instead of an fsync for each of what may be thousands of files */
        worker_fail("write", errno, "cannot sync");
    worker_check();
    stage_place(&stage);
    tlv_put_u64(&w, 2, bytes);
    tlv_put_u64(&w, 3, !stage.target_exists);
    tlv_put_u64(&w, 5, entries);
    worker_done(&w);
}
