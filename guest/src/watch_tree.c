/* See watch.h: the tree of folders, by watch descriptor and by name. */
#include "watch.h"

#include <errno.h>
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
static uint32_t generation;   /* of the last look at the whole tree */

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

void watch_will_be_told(const struct folder *above, const char *name)
{
    static char yes;

    table_put(&told, name_key(above, name), &yes);
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

void folder_set_missed(struct folder *f, bool missed)
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
    folder_set_missed(f, false);
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

struct folder *folder_add(struct folder *above, const char *name, int fd, ino_t inode, bool *is_new)
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

void watch_new_generation(void)
{
    generation++;
    watched.root->seen = generation;
}

void watch_forget_unseen(void) { forget_each(is_unseen, 0); }
