/* See unpack.h. The stage lies inside of an existing target, since its user need not be able to write beside it. */
#include "unpack.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

void stage_open(struct stage *s)
{
    struct stat st;

    s->beside = open(worker.path, O_PATH | O_CLOEXEC);
    if (s->beside >= 0) {
        if (fstat(s->beside, &st) < 0 || !S_ISDIR(st.st_mode))
            worker_fail("type", ENOTDIR, "is not a folder");
        s->target_exists = true;
        return;
    }
    if (errno != ENOENT)
        worker_fail("path", errno, "cannot open the folder");
    int error = open_parent(AT_FDCWD, worker.path, flag(FILE_PARENTS), &s->beside, s->target);
    if (error != 0)
        worker_fail("path", error, "cannot enter the folder above");
    if (faccessat(s->beside, s->target, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
        worker_fail("path", EEXIST, "is a link to nothing");
}

void stage_make(struct stage *s)
{
    temporary_name(s->name);
    if (mkdirat(s->beside, s->name, 0700) < 0)
        worker_fail("path", errno, "cannot create a folder there");
    s->fd = openat(s->beside, s->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (s->fd < 0)
        worker_fail("path", errno, "cannot open a folder there");
}

enum pass { PASS_CHECK, PASS_MOVE };

static void place_folder(int from, int to, enum pass pass, unsigned depth);

/* One entry of the stage against what the target has under that name. */
static void place_entry(int from, int to, const char *name, enum pass pass, unsigned depth)
{
    struct stat mine, theirs;

    if (pass == PASS_CHECK)
        worker_check();   /* once moving has begun it goes through: half of it would be no use to anybody */
    if (fstatat(from, name, &mine, AT_SYMLINK_NOFOLLOW) < 0)
        worker_fail("archive", errno, "an unpacked entry is gone");
    bool exists = fstatat(to, name, &theirs, AT_SYMLINK_NOFOLLOW) == 0;
    if (!exists && errno != ENOENT)
        worker_fail("path", errno, "cannot look into the target");
    if (exists && S_ISDIR(mine.st_mode)) {
        int from_fd = openat(from, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        int to_fd = openat(to, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (from_fd < 0 || to_fd < 0)
            worker_fail("archive", errno, "an entry leads through a link or a file of the target");
        place_folder(from_fd, to_fd, pass, depth + 1);
        close(to_fd);
        return;
    }
    if (exists && S_ISDIR(theirs.st_mode))
        worker_fail("archive", EISDIR, "a file would replace a folder of the target");
    if (exists && !flag(FILE_OVERWRITE))
        worker_fail("path", EEXIST, "a file exists already");
    if (pass == PASS_CHECK)
        return;
    if (syscall(SYS_renameat2, from, name, to, name, flag(FILE_OVERWRITE) ? 0 : 1) < 0)
        worker_fail("write", errno, "cannot move an entry into place");
}

/* Takes `from` over. */
static void place_folder(int from, int to, enum pass pass, unsigned depth)
{
    DIR *folder = fdopendir(from);
    struct dirent *entry;

    if (folder == NULL || depth > DEPTH_MAX)
        worker_fail("limit", ENAMETOOLONG, "the tree is too deep");
    while ((entry = readdir(folder)) != NULL)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            place_entry(dirfd(folder), to, entry->d_name, pass, depth);
    closedir(folder);
}

static int reopen(const struct stage *s)
{
    int fd = openat(s->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0)
        worker_fail("archive", errno, "the unpacked tree is gone");
    return fd;
}

void stage_place(struct stage *s)
{
    int error;

    if (s->target_exists) {
        place_folder(reopen(s), s->beside, PASS_CHECK, 0);
        place_folder(reopen(s), s->beside, PASS_MOVE, 0);
        error = remove_tree(s->beside, s->name, true);
        if (error != 0)
            worker_fail("write", error, "cannot remove the temporary folder");
    } else {
        if (fchmod(s->fd, wanted_mode(0777)) < 0)
            worker_fail("write", errno, "cannot set the folder's mode");
        if (syscall(SYS_renameat2, s->beside, s->name, s->beside, s->target, 1) < 0)
            worker_fail("path", errno, "cannot rename");
    }
    worker.undo = NULL;
    if (syncfs(s->fd) < 0)   /* the stage's descriptor is on the same file system, removed or not */
        worker_fail("write", errno, "cannot sync");
    error = sync_folder(s->beside);
    if (error != 0)
        worker_fail("write", error, "cannot sync the folder");
}
