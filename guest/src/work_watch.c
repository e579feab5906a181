/* Watch: what changes in a folder (and below) is told on channel 1 until the input ends.
 *
 * The input asks for a sync by 8 bytes: they come back in a record behind all that happened before they were read. When
 * the output is not taken this worker waits, the kernel's queue fills up, and `overflow` says that something was lost.
 */
#include "watch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define EVENT_BYTES_MAX (PATH_BYTES_MAX + 128u)
#define ADRIFT_POLL_MS 20
#define READS_AT_ONCE 64

static uint8_t held[65536];
static size_t held_length;

static void flush_events(void)
{
    output_write(held, held_length);
    held_length = 0;
}

static struct tlv_writer begin_record(enum watch_event event)
{
    uint8_t kind = (uint8_t)event;

    if (sizeof held - held_length < EVENT_BYTES_MAX)
        flush_events();
    struct tlv_writer w = { .data = held + held_length + 4, .size = EVENT_BYTES_MAX - 4 };
    tlv_put(&w, 1, &kind, 1);
    return w;
}

static void end_record(const struct tlv_writer *w)
{
    put32(held + held_length, (uint32_t)w->used);
    held_length += 4 + w->used;
}

/* The path below the watched folder into the end of `path`; NULL: it is adrift. */
static const char *path_of(char path[PATH_BYTES_MAX + 1], const struct folder *above, const char *name)
{
    char *at = path + PATH_BYTES_MAX;

    *at = 0;
    for (bool last = true; last || above != watched.root; last = false) {
        const char *part = last ? name : above->name;
        size_t length = strlen(part);
        if (!last) {
            above = above->above;
            *--at = '/';
        }
        if ((size_t)(at - path) < length + 1)
            worker_fail("limit", ENAMETOOLONG, "a folder lies too deep to be watched");
        at -= length;
        memcpy(at, part, length);
        if (above == NULL)
            return NULL;
    }
    return at;
}

void watch_tell(enum watch_event event, struct folder *above, const char *name, bool is_folder, uint32_t cookie)
{
    char path[PATH_BYTES_MAX + 1];
    const char *shown = name;

    if (above != NULL) {
        shown = path_of(path, above, name);
        if (shown == NULL) {
            while (above->above != NULL)
                above = above->above;
            above->unheard = true;
            return;
        }
    }
    struct tlv_writer w = begin_record(event);
    if (event != EVENT_OVERFLOW)
        tlv_put_string(&w, 2, shown);
    if (is_folder)
        tlv_put_u64(&w, 3, 1);
    if (cookie != 0)
        tlv_put_u64(&w, 4, cookie);
    end_record(&w);
}

void watch_end(enum watch_event event)
{
    watch_tell(event, NULL, ".", true, 0);
    watched.over = false;
    if (watched.root != NULL)
        watch_forget(watched.root);
    watched.root = NULL;
}

/* Of a watched folder itself, without a name: those above it tell the same with one, but for the topmost. */
static void take_own(struct folder *f, uint32_t mask)
{
    if (f == watched.root) {
        if (mask & (IN_DELETE_SELF | IN_UNMOUNT | IN_IGNORED))
            watch_end(EVENT_REMOVE);
        else if (mask & IN_MOVE_SELF)
            watch_end(EVENT_RENAME);
        else if (mask & IN_ATTRIB)
            watch_tell(EVENT_CHMOD, NULL, ".", true, 0);
    } else if (mask & IN_IGNORED) {
        watch_forget(f);
    }
}

static void take_named(struct folder *f, const struct inotify_event *event)
{
    const char *name = event->name;
    uint32_t mask = event->mask;
    bool is_folder = mask & IN_ISDIR;
    struct folder *child;

    if (mask & (IN_CREATE | IN_MOVED_TO)) {
        if (watch_was_told(f, name))
            return;
        watch_tell(EVENT_CREATE, f, name, is_folder, event->cookie);
        if (is_folder)
            watch_look(f, name, mask & IN_CREATE ? SCAN_MADE : SCAN_FOUND);
        return;
    }
    if (mask & (IN_DELETE | IN_MOVED_FROM)) {
        watch_was_told(f, name);
        watch_tell(mask & IN_DELETE ? EVENT_REMOVE : EVENT_RENAME, f, name, is_folder, event->cookie);
        child = is_folder ? child_of(f, name) : NULL;
        if (child != NULL && !watch_is_there(child))
            watch_set_adrift(child);   /* or gone: then the kernel says so */
        return;
    }
    if (mask & IN_MODIFY)
        watch_tell(EVENT_WRITE, f, name, is_folder, 0);
    if (mask & IN_ATTRIB) {
        watch_tell(EVENT_CHMOD, f, name, is_folder, 0);
        if (is_folder && child_of(f, name) == NULL)
            watch_look(f, name, SCAN_FOUND);   /* it may have become readable */
    }
}

static void take_event(const struct inotify_event *event)
{
    struct folder *f;

    if (watched.root == NULL)
        return;
    if (event->mask & IN_Q_OVERFLOW) {
        watch_tell(EVENT_OVERFLOW, NULL, "", false, 0);
        watch_resync();
    } else if ((f = folder_of(event->wd)) != NULL) {
        if (event->len > 0 && event->name[0] != 0)
            take_named(f, event);
        else
            take_own(f, event->mask);
    }
    if (watched.over)
        watch_end(EVENT_RENAME);
}

/* Read once. The bytes that were taken; 0: there are none. */
static size_t take_some(void)
{
    static uint8_t buffer[65536] __attribute__((aligned(__alignof__(struct inotify_event))));
    ssize_t n = read(watched.inotify, buffer, sizeof buffer);

    if (n <= 0) {
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            worker_fail("read", errno, "cannot read what changed");
        return 0;
    }
    for (ssize_t at = 0; at < n;) {
        const struct inotify_event *event = (const struct inotify_event *)(const void *)(buffer + at);
        worker_check();
        take_event(event);
        at += (ssize_t)(sizeof *event + event->len);
    }
    return (size_t)n;
}

static void take_events(void)
{
    for (int i = 0; i < READS_AT_ONCE; i++) {
        if (take_some() == 0) {
            watch_told_all();
            return;
        }
    }
}

/* What the kernel has now is told before the token comes back; what comes meanwhile may be. */
static void sync_events(const uint8_t *token)
{
    int queued = 0;

    if (ioctl(watched.inotify, FIONREAD, &queued) < 0)
        worker_fail("read", errno, "cannot read what changed");
    while (queued > 0) {
        size_t n = take_some();
        if (n == 0)
            break;
        queued -= (int)n;
    }
    struct tlv_writer w = begin_record(EVENT_SYNCED);
    tlv_put_u64(&w, 5, get64(token));
    end_record(&w);
}

/* False at the end of the input. */
static bool take_input(void)
{
    static uint8_t waiting[4096];
    static size_t length;
    size_t n = input_read(waiting + length, sizeof waiting - length), at = 0;

    if (n == 0)
        return false;
    length += n;
    for (; length - at >= 8; at += 8)
        sync_events(waiting + at);
    length -= at;
    memmove(waiting, waiting + at, length);
    return true;
}

void work_watch(void)
{
    static uint8_t result[PATH_BYTES_MAX + 64];
    struct tlv_writer w = { .data = result, .size = sizeof result };
    bool going_on = true;

    watched.inotify = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (watched.inotify < 0)
        worker_fail("limit", 0, "this user has too many watches open in the sandbox (max_user_instances)");
    watch_begin();
    struct tlv_writer ready = begin_record(EVENT_READY);
    end_record(&ready);
    while (going_on && watched.root != NULL) {
        struct pollfd fds[2] = { { .fd = watched.inotify, .events = POLLIN }, { .fd = worker.in_fd, .events = POLLIN } };
        flush_events();
        if (chdir("/") < 0)   /* a folder that is entered can't be told to be gone */
            worker_fail("path", errno, "cannot enter /");
        if (poll(fds, 2, watched.adrift > 0 ? ADRIFT_POLL_MS : -1) < 0 && errno != EINTR)
            worker_fail("read", errno, "cannot wait for changes");
        worker_check();
        if (fds[0].revents != 0)
            take_events();
        if (fds[1].revents != 0)
            going_on = take_input();
        watch_expire(now_ms());
    }
    flush_events();
    base_put(&w);
    worker_done(&w);
}
