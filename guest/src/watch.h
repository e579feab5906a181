/* The folders of one watch, as this worker knows them, and what is told of them.
 *
 * A folder is known by its watch descriptor, which the kernel gives once per inode: so one that is found at another place
 * is the same folder, moved. Events are hints of what to look at; where something is now, the file system says.
 */
#ifndef BELLGLASS_WATCH_H
#define BELLGLASS_WATCH_H

#include "worker.h"

enum watch_event {
    EVENT_CREATE = 'c', EVENT_WRITE = 'w', EVENT_REMOVE = 'r', EVENT_RENAME = 'n', EVENT_CHMOD = 'm',
    EVENT_OVERFLOW = 'o', EVENT_READY = 'b', EVENT_SYNCED = 's',
};

struct folder {
    int wd;
    ino_t inode;
    uint32_t seen;             /* the generation that found it last */
    bool adrift;               /* moved away, nobody knows whereto; `above` is NULL */
    bool missed;               /* something below it was to be watched, and could not be found */
    bool unheard;              /* an event of it was dropped while it was adrift */
    int64_t adrift_at_ms;
    struct folder *above, *first, *next, *previous;
    char name[];
};

/* What of a folder's content is told while it is scanned. */
enum scan { SCAN_QUIET, SCAN_FOUND, SCAN_MADE, SCAN_AGAIN };

struct watched {
    int inotify;
    dev_t device;
    struct folder *root;
    bool over;                 /* the watched folder is gone from where it was */
    unsigned adrift, missed;   /* how many there are */
};

extern struct watched watched;

/* watch_tree.c */
struct folder *folder_of(int wd);
struct folder *child_of(const struct folder *above, const char *name);
/* Watch the folder of a descriptor. NULL: it may not be, or is gone; `is_new`: it was not known before. */
struct folder *folder_add(struct folder *above, const char *name, int fd, ino_t inode, bool *is_new);
void folder_set_missed(struct folder *f, bool missed);
void watch_set_adrift(struct folder *f);
/* Give up folders that have been adrift for long: they are outside of what is watched. */
void watch_expire(int64_t now_ms);
void watch_forget(struct folder *f);
/* Between these two the whole tree is looked at: folders that were not met are given up. */
void watch_new_generation(void);
void watch_forget_unseen(void);
/* A scan has told of this name; the kernel may tell it once more. */
void watch_will_be_told(const struct folder *above, const char *name);
/* True once, if so. */
bool watch_was_told(const struct folder *above, const char *name);
/* The kernel has told all that happened before the last scan. */
void watch_told_all(void);

/* watch_scan.c */
void watch_begin(void);
/* Look at what is called `name` in `above` now, and watch it if it is a folder. */
void watch_look(struct folder *above, const char *name, enum scan scan);
/* Whether `f` still lies where it was last seen. */
bool watch_is_there(struct folder *f);
/* After an overflow: the whole tree anew. */
void watch_resync(void);

/* work_watch.c */
void watch_tell(enum watch_event event, struct folder *above, const char *name, bool is_folder, uint32_t cookie);
/* Ends the watch behind `event` of the watched folder itself. */
void watch_end(enum watch_event event);

#endif
