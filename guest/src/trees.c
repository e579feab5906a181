/* Whole trees: removed and copied through folder descriptors, never by joined paths, never through a link. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/sendfile.h>
#include <unistd.h>

#include "worker.h"

#define ROUNDS_MAX 10000u

/* Deep trees are removed flat: below DEPTH_MAX a folder is moved up into the top one and taken from there, so neither
 * descriptors nor the stack limit the depth. */
static int empty_folder(int fd, int top, unsigned depth, bool undoing)
{
    DIR *folder = fdopendir(fd);
    struct dirent *entry;
    int error = 0;

    if (folder == NULL) {
        error = errno;
        close(fd);
        return error;
    }
    while (error == 0 && (entry = readdir(folder)) != NULL) {
        const char *name = entry->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
            continue;
        if (!undoing)
            worker_check();
        if (unlinkat(fd, name, 0) == 0 || errno == ENOENT)
            continue;
        if (errno != EISDIR && errno != EPERM) {
            error = errno;
            break;
        }
        int unlink_error = errno;
        int inner = openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (inner < 0) {
            error = unlinkat(fd, name, AT_REMOVEDIR) == 0 ? 0 : errno == ENOTDIR ? unlink_error : errno;
            continue;
        }
        if (depth >= DEPTH_MAX) {
            char moved[TEMPORARY_SIZE];
            close(inner);
            temporary_name(moved);
            if (renameat(fd, name, top, moved) < 0)
                error = errno;
            continue;
        }
        error = empty_folder(inner, top, depth + 1, undoing);
        if (error == 0 && unlinkat(fd, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
            error = errno;
    }
    closedir(folder);
    return error;
}

int remove_tree(int at, const char *name, bool undoing)
{
    if (unlinkat(at, name, 0) == 0)
        return 0;
    if (errno != EISDIR && errno != EPERM)
        return errno;
    /* what was moved up from far below is found in the next round; somebody may add entries for ever, so rounds end */
    for (unsigned round = 0; round < ROUNDS_MAX; round++) {
        int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0) {
            int open_error = errno;   /* an empty folder needs no permission to be read */
            return unlinkat(at, name, AT_REMOVEDIR) == 0 ? 0 : open_error;
        }
        int top = openat(at, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        int error = empty_folder(fd, top, 0, undoing);
        close(top);
        if (error != 0)
            return error;
        if (unlinkat(at, name, AT_REMOVEDIR) == 0)
            return 0;
        if (errno != ENOTEMPTY && errno != EEXIST)
            return errno;
        if (!undoing)
            worker_check();
    }
    return ENOTEMPTY;
}

static void keep_attributes(int fd, const struct stat *st)
{
    struct timespec times[2] = { st->st_atim, st->st_mtim };

    if (fchown(fd, st->st_uid, st->st_gid) == 0 || geteuid() == st->st_uid)
        (void)fchmod(fd, st->st_mode & 07777);
    else
        (void)fchmod(fd, st->st_mode & 0777);   /* another owner now: setuid would mean somebody else */
    (void)futimens(fd, times);
}

static int copy_file(int from_at, const char *from, int to_at, const char *to, const struct stat *st)
{
    int in = openat(from_at, from, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC), error = 0;
    int out = in < 0 ? -1 : openat(to_at, to, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);

    if (out < 0) {
        error = errno;
        if (in >= 0)
            close(in);
        return error;
    }
    for (ssize_t n = 1; n > 0 && error == 0;) {
        worker_check();
        n = sendfile(out, in, NULL, 1u << 20);
        if (n < 0 && errno == EINTR)
            n = 1;
        else if (n < 0)
            error = errno;
    }
    if (error == 0)
        keep_attributes(out, st);
    close(in);
    close(out);
    return error;
}

static int copy_link(int from_at, const char *from, int to_at, const char *to, const struct stat *st)
{
    char target[PATH_BYTES_MAX + 1];
    ssize_t n = readlinkat(from_at, from, target, PATH_BYTES_MAX);

    if (n < 0)
        return errno;
    target[n] = 0;
    if (symlinkat(target, to_at, to) < 0)
        return errno;
    (void)fchownat(to_at, to, st->st_uid, st->st_gid, AT_SYMLINK_NOFOLLOW);
    return 0;
}

static int copy_folder(int from_at, const char *from, int to_at, const char *to, const struct stat *st, unsigned depth)
{
    if (depth > DEPTH_MAX)
        return ELOOP;
    int in = openat(from_at, from, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (in < 0)
        return errno;
    DIR *folder = fdopendir(in);
    struct dirent *entry;
    int error = 0, out = -1;

    if (folder == NULL || mkdirat(to_at, to, 0700) < 0
        || (out = openat(to_at, to, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) < 0)
        error = errno;
    while (error == 0 && (entry = readdir(folder)) != NULL)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            error = copy_tree(in, entry->d_name, out, entry->d_name, depth + 1);
    if (error == 0)
        keep_attributes(out, st);
    if (out >= 0)
        close(out);
    if (folder != NULL)
        closedir(folder);
    else
        close(in);
    return error;
}

int copy_tree(int from_at, const char *from, int to_at, const char *to, unsigned depth)
{
    struct stat st;

    worker_check();
    if (fstatat(from_at, from, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno;
    switch (st.st_mode & S_IFMT) {
    case S_IFREG: return copy_file(from_at, from, to_at, to, &st);
    case S_IFDIR: return copy_folder(from_at, from, to_at, to, &st, depth);
    case S_IFLNK: return copy_link(from_at, from, to_at, to, &st);
    case S_IFIFO: return mkfifoat(to_at, to, st.st_mode & 0777) == 0 ? 0 : errno;
    default: return EXDEV;   /* a device or socket: mv(1) would need root for the one and loses the other */
    }
}
