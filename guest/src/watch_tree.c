/* See watch.h: the tree of folders, and how it follows the file system. No descriptor of a folder is kept: the kernel
 * would not tell of its removal. */
#include "watch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "watch_table.h"

#define MASK (IN_CREATE | IN_MODIFY | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_ATTRIB | IN_DELETE_SELF \
    | IN_MOVE_SELF | IN_ONLYDIR | IN_EXCL_UNLINK)
#define ADRIFT_MS 20

struct watched watched;
static struct table by_wd, by_name, told;
static uint32_t generation;
static char root_path[PATH_MAX];

static void scan_folder(struct folder *f, int fd, enum scan scan, unsigned depth);

static uint64_t name_key(const struct folder *above, const char *name)
{
    uint64_t hash = 0xCBF29CE484222325u ^ (uint64_t)(unsigned)above->wd * 0x100000001B3u;

    for (; *name != 0; name++)
        hash = (hash ^ (uint8_t)*name) * 0x100000001B3u;
    return hash;
}

struct folder *folder_of(int wd) { return table_get(&by_wd, (uint64_t)(unsigned)wd); }

struct folder *child_of(const struct folder *above, const char *name)
{
    struct folder *f = table_get(&by_name, name_key(above, name));

    return f != NULL && f->above == above && strcmp(f->name, name) == 0 ? f : NULL;
}

bool watch_was_told(const struct folder *above, const char *name)
{
    return table_take(&told, name_key(above, name)) != NULL;
}

void watch_told_all(void)
{
    if (told.used > 0)
        table_clear(&told);
}

static void detach(struct folder *f)
{
    if (f->above == NULL)
        return;
    if (child_of(f->above, f->name) == f)
        table_take(&by_name, name_key(f->above, f->name));
    if (f->previous != NULL)
        f->previous->next = f->next;
    else
        f->above->first = f->next;
    if (f->next != NULL)
        f->next->previous = f->previous;
    f->above = f->next = f->previous = NULL;
}

static void attach(struct folder *f, struct folder *above)
{
    f->above = above;
    f->next = above->first;
    if (f->next != NULL)
        f->next->previous = f;
    above->first = f;
    table_put(&by_name, name_key(above, f->name), f);
}

static void not_adrift(struct folder *f)
{
    watched.adrift -= f->adrift;
    f->adrift = false;
}

void watch_set_adrift(struct folder *f)
{
    detach(f);
    if (f->adrift)
        return;
    f->adrift = true;
    f->unheard = false;
    f->adrift_at_ms = now_ms();
    watched.adrift++;
}

static void set_missed(struct folder *f, bool missed)
{
    watched.missed += (unsigned)missed - (unsigned)f->missed;
    f->missed = missed;
}

void watch_forget(struct folder *f)
{
    while (f->first != NULL)
        watch_forget(f->first);
    detach(f);
    not_adrift(f);
    set_missed(f, false);
    inotify_rm_watch(watched.inotify, f->wd);
    table_take(&by_wd, (uint64_t)(unsigned)f->wd);
    if (f == watched.root)
        watched.root = NULL;
    free(f);
}

static void *folder_new(const char *name)
{
    size_t length = strlen(name);
    struct folder *f = calloc(1, sizeof *f + length + 1);

    if (f == NULL)
        worker_fail("limit", 0, "no memory for a watch of so many folders");
    memcpy(f->name, name, length + 1);
    return f;
}

/* A known folder has been found elsewhere. Its name is part of it, so it becomes another piece of memory. */
static struct folder *move_folder(struct folder *f, struct folder *above, const char *name)
{
    struct folder *moved = folder_new(name), *old = child_of(above, name);

    for (const struct folder *up = above; up != NULL; up = up->above)
        if (up == f) {   /* what is told is being overtaken: another look will come */
            free(moved);
            return NULL;
        }
    if (old != NULL)
        watch_set_adrift(old);
    detach(f);
    if (f->unheard)
        watch_tell(EVENT_OVERFLOW, NULL, "", false, 0);
    not_adrift(f);
    moved->wd = f->wd;
    moved->inode = f->inode;
    moved->seen = f->seen;
    moved->missed = f->missed;
    moved->first = f->first;
    for (struct folder *child = moved->first; child != NULL; child = child->next)
        child->above = moved;
    free(f);
    table_put(&by_wd, (uint64_t)(unsigned)moved->wd, moved);
    attach(moved, above);
    return moved;
}

/* Watch the folder of a descriptor. NULL: it may not be, or is gone; `is_new`: it was not known before. */
static struct folder *add_folder(struct folder *above, const char *name, int fd, ino_t inode, bool *is_new)
{
    int wd = fchdir(fd) < 0 ? -1 : inotify_add_watch(watched.inotify, ".", MASK);
    struct folder *f, *old;

    if (wd < 0 && errno == ENOSPC)
        worker_fail("limit", 0, "the kernel watches no more folders for this sandbox (max_user_watches)");
    if (wd < 0)
        return NULL;
    f = folder_of(wd);
    *is_new = f == NULL;
    if (f == NULL) {
        if (by_wd.used >= worker.r->max_entries) {
            inotify_rm_watch(watched.inotify, wd);
            worker_fail("limit", 0, "there are more folders than one watch may have");
        }
        f = folder_new(name);
        f->wd = wd;
        f->inode = inode;
        table_put(&by_wd, (uint64_t)(unsigned)wd, f);
        if (above != NULL) {
            old = child_of(above, name);
            if (old != NULL)
                watch_set_adrift(old);
            attach(f, above);
        }
    } else if (f != watched.root && (f->above != above || strcmp(f->name, name) != 0)) {
        f = move_folder(f, above, name);
    }
    if (f != NULL)
        f->seen = generation;
    return f;
}

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
            set_missed(f, false);
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
    struct folder *f = add_folder(above, name, inner, st.st_ino, &is_new);
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
        set_missed(above, true);
        return;
    }
    look_inside(above, fd, name, scan, 0);
    close(fd);
}

static void tell_found(struct folder *f, int fd, const char *name, unsigned char type, enum scan scan)
{
    static char yes;
    struct stat st;

    if (child_of(f, name) != NULL)
        return;   /* looked at again: known for long */
    watch_tell(EVENT_CREATE, f, name, type == DT_DIR, 0);
    table_put(&told, name_key(f, name), &yes);
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

static bool is_long_adrift(const struct folder *f, int64_t now)
{
    return f->adrift && now - f->adrift_at_ms >= ADRIFT_MS;
}

static bool is_unseen(const struct folder *f, int64_t now)
{
    (void)now;
    return f->seen != generation;
}

static void forget_each(bool (*which)(const struct folder *, int64_t), int64_t now)
{
    bool forgot = true;

    while (forgot) {   /* what is taken out moves others to slots that were looked at */
        forgot = false;
        for (size_t i = 0; i < by_wd.size; i++) {
            struct folder *f = by_wd.slots[i].value;
            if (f != NULL && which(f, now)) {
                watch_forget(f);
                forgot = true;
            }
        }
    }
}

void watch_expire(int64_t now)
{
    if (watched.adrift > 0)
        forget_each(is_long_adrift, now);
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
    generation++;
    watched.root->seen = generation;
    content = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    close(fd);
    if (content < 0)
        return;
    scan_folder(watched.root, content, SCAN_AGAIN, 0);
    forget_each(is_unseen, 0);
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
    watched.root = add_folder(NULL, "", fd, st.st_ino, &is_new);
    if (watched.root == NULL)
        worker_fail("path", errno, "cannot watch the folder");
    if (flag(FILE_RECURSIVE))
        scan_folder(watched.root, fd, SCAN_QUIET, 0);
    else
        close(fd);
}
