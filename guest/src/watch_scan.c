/* See watch.h: how the tree follows the file system. No descriptor of a folder is kept: the kernel would not tell of its
 * removal. */
#include "watch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char root_path[PATH_MAX];

static void scan_folder(struct folder *f, int fd, enum scan scan, unsigned depth);

/* An O_PATH descriptor of where `f` was last seen, or -1 if something else is there now. */
static int open_folder(struct folder *f)
{
    struct folder *steps[DEPTH_MAX + 2];
    struct stat st;
    unsigned count = 0;
    int fd, next;

    for (; f != watched.root; f = f->above) {
        if (f->above == NULL)
            return -1;
        if (count == DEPTH_MAX)
            worker_fail("limit", 0, "a folder lies too deep to be watched");
        steps[count++] = f;
    }
    fd = open(root_path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0 || st.st_ino != watched.root->inode || st.st_dev != watched.device) {
        if (fd >= 0)
            close(fd);
        watched.over = true;   /* a folder above it was renamed: the kernel doesn't tell that */
        return -1;
    }
    while (count-- > 0) {
        next = openat(fd, steps[count]->name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        close(fd);
        if (next < 0)
            return -1;
        if (fstat(next, &st) < 0 || st.st_ino != steps[count]->inode || st.st_dev != watched.device) {
            close(next);
            return -1;
        }
        fd = next;
    }
    return fd;
}

bool watch_is_there(struct folder *f)
{
    int fd = open_folder(f);

    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

static void look_again_below(struct folder *f)
{
    if (watched.missed == 0)
        return;
    if (f->missed) {
        int fd = open_folder(f), content = -1;
        if (fd >= 0) {
            content = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
            close(fd);
        }
        if (content >= 0) {
            folder_set_missed(f, false);
            scan_folder(f, content, SCAN_FOUND, 0);
        }
    }
    for (struct folder *child = f->first; child != NULL;) {
        int wd = child->wd;   /* a scan may give it another piece of memory */
        look_again_below(child);
        child = folder_of(wd);
        child = child == NULL ? NULL : child->next;
    }
}

static void look_inside(struct folder *above, int fd, const char *name, enum scan scan, unsigned depth)
{
    struct stat st;
    bool is_new = false;
    int inner = openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

    if (inner < 0) {
        if (errno == EMFILE || errno == ENFILE)
            worker_fail("limit", errno, "no descriptors for a watch of so deep a tree");
        return;   /* no folder (any more), or one that this user may not read */
    }
    if (fstat(inner, &st) < 0 || st.st_dev != watched.device) {   /* what is mounted there is not watched */
        close(inner);
        return;
    }
    struct folder *f = folder_add(above, name, inner, st.st_ino, &is_new);
    if (f != NULL && (is_new || scan == SCAN_AGAIN)) {
        scan_folder(f, inner, scan, depth + 1);
        return;
    }
    close(inner);
    if (f != NULL)
        look_again_below(f);
}

void watch_look(struct folder *above, const char *name, enum scan scan)
{
    int fd;

    if (!flag(FILE_RECURSIVE))
        return;
    fd = open_folder(above);
    if (fd < 0) {
        folder_set_missed(above, true);
        return;
    }
    look_inside(above, fd, name, scan, 0);
    close(fd);
}

static void tell_found(struct folder *f, int fd, const char *name, unsigned char type, enum scan scan)
{
    struct stat st;

    if (child_of(f, name) != NULL)
        return;   /* looked at again: known for long */
    watch_tell(EVENT_CREATE, f, name, type == DT_DIR, 0);
    watch_will_be_told(f, name);
    if (scan == SCAN_MADE && type != DT_DIR && fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode)
        && st.st_size > 0)
        watch_tell(EVENT_WRITE, f, name, false, 0);
}

/* Takes the descriptor. */
static void scan_folder(struct folder *f, int fd, enum scan scan, unsigned depth)
{
    DIR *folder = fdopendir(fd);
    struct dirent *entry;
    struct stat st;
    int wd = f->wd;

    if (folder == NULL)
        worker_fail("limit", errno, "no memory for a watch");
    if (depth > DEPTH_MAX)
        worker_fail("limit", 0, "a folder lies too deep to be watched");
    while (f != NULL && (entry = readdir(folder)) != NULL) {
        const char *name = entry->d_name;
        unsigned char type = entry->d_type;
        worker_check();
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
            continue;
        if (type == DT_UNKNOWN && fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0)
            type = S_ISDIR(st.st_mode) ? DT_DIR : DT_REG;
        if (scan == SCAN_FOUND || scan == SCAN_MADE)
            tell_found(f, fd, name, type, scan);
        if (type == DT_DIR)
            look_inside(f, fd, name, scan, depth);
        f = folder_of(wd);   /* gone or moved meanwhile */
    }
    closedir(folder);
}

void watch_resync(void)
{
    int fd = open_folder(watched.root), content;

    watch_told_all();
    if (fd < 0 || !flag(FILE_RECURSIVE)) {
        if (fd >= 0)
            close(fd);
        return;
    }
    watch_new_generation();
    content = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    close(fd);
    if (content < 0)
        return;
    scan_folder(watched.root, content, SCAN_AGAIN, 0);
    watch_forget_unseen();
}

void watch_begin(void)
{
    struct stat st;
    bool is_new;
    int flags = O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC | (flag(FILE_NOFOLLOW) ? O_NOFOLLOW : 0);
    int fd = open(worker.path, flags);

    if (fd < 0 || fstat(fd, &st) < 0)
        worker_fail(errno == ENOTDIR ? "type" : "path", errno, "cannot open the folder");
    if (realpath(worker.path, root_path) == NULL)
        worker_fail("path", errno, "cannot resolve the folder");
    watched.device = st.st_dev;
    watched.root = folder_add(NULL, "", fd, st.st_ino, &is_new);
    if (watched.root == NULL)
        worker_fail("path", errno, "cannot watch the folder");
    if (flag(FILE_RECURSIVE))
        scan_folder(watched.root, fd, SCAN_QUIET, 0);
    else
        close(fd);
}
