/* See users.h. */
#include "users.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DATABASE_MAX (4u << 20)
#define LINE_MAX_BYTES 65536u
#define FIELDS_MAX 7

struct lines {
    int fd;
    size_t read, start, end;
    bool skipping;   /* inside of a line that is too long: no part of it counts */
};

const char *passwd_path = "/etc/passwd", *group_path = "/etc/group";
static char line_buffer[LINE_MAX_BYTES + 1];

static bool lines_open(struct lines *l, const char *path)
{
    struct stat st;

    *l = (struct lines){ .fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC) };
    if (l->fd < 0)
        return false;
    if (fstat(l->fd, &st) == 0 && S_ISREG(st.st_mode))
        return true;
    close(l->fd);
    return false;
}

/* The next line, terminated in place, or NULL. */
static char *lines_next(struct lines *l)
{
    for (;;) {
        char *begin = line_buffer + l->start;
        char *newline = memchr(begin, '\n', l->end - l->start);
        if (newline != NULL) {
            bool skip = l->skipping;
            *newline = 0;
            l->start = (size_t)(newline - line_buffer) + 1;
            l->skipping = false;
            if (skip)
                continue;
            return begin;
        }
        size_t held = l->end - l->start;
        memmove(line_buffer, begin, held);
        l->start = 0;
        l->end = held;
        if (held == LINE_MAX_BYTES) {
            l->skipping = true;
            l->end = 0;
        }
        ssize_t n = l->read < DATABASE_MAX ? read(l->fd, line_buffer + l->end, LINE_MAX_BYTES - l->end) : 0;
        if (n <= 0) {
            if (l->end == 0 || l->skipping)
                return NULL;
            line_buffer[l->end] = 0;   /* a last line without its newline */
            l->end = l->start = 0;
            l->read = DATABASE_MAX;
            return line_buffer;
        }
        l->read += (size_t)n;
        l->end += (size_t)n;
    }
}

static int split(char *line, char *fields[FIELDS_MAX])
{
    int count = 0;

    while (count < FIELDS_MAX) {
        fields[count++] = line;
        line = strchr(line, ':');
        if (line == NULL)
            break;
        *line++ = 0;
    }
    return count;
}

static bool decimal(const char *text, size_t length, uint32_t *value)
{
    uint64_t sum = 0;

    if (length == 0 || length > 10)
        return false;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        sum = sum * 10 + (uint64_t)(text[i] - '0');
    }
    if (sum >= UINT32_MAX)   /* (uid_t)-1 means "no change" to the kernel */
        return false;
    *value = (uint32_t)sum;
    return true;
}

static void copy(char *to, size_t size, const char *from)
{
    size_t length = strnlen(from, size - 1);

    memcpy(to, from, length);
    to[length] = 0;
}

/* Fill in from the first entry with that name (or, name NULL, that uid). */
static bool passwd_entry(struct identity *who, const char *name, uid_t uid)
{
    struct lines l;
    char *line, *f[FIELDS_MAX];
    uint32_t id, gid;
    bool found = false;

    if (!lines_open(&l, passwd_path))
        return false;
    while (!found && (line = lines_next(&l)) != NULL) {
        if (split(line, f) < 7 || !decimal(f[2], strlen(f[2]), &id) || !decimal(f[3], strlen(f[3]), &gid))
            continue;
        if (name != NULL ? strcmp(f[0], name) != 0 : id != uid)
            continue;
        who->uid = id;
        who->gid = gid;
        copy(who->name, sizeof who->name, f[0]);
        copy(who->home, sizeof who->home, f[5][0] == '/' ? f[5] : "/");
        copy(who->shell, sizeof who->shell, f[6][0] == '/' ? f[6] : "/bin/sh");
        found = true;
    }
    close(l.fd);
    return found;
}

static bool is_member(const char *members, const char *name)
{
    size_t length = strlen(name);

    while (*members) {
        size_t part = strcspn(members, ",");
        if (part == length && memcmp(members, name, length) == 0)
            return true;
        members += part;
        if (*members == ',')
            members++;
    }
    return false;
}

static void supplementary_groups(struct identity *who)
{
    struct lines l;
    char *line, *f[FIELDS_MAX];
    uint32_t gid;

    who->groups[0] = who->gid;
    who->group_count = 1;
    if (who->name[0] == 0 || !lines_open(&l, group_path))
        return;
    while (who->group_count < GROUPS_MAX && (line = lines_next(&l)) != NULL) {
        if (split(line, f) < 4 || !decimal(f[2], strlen(f[2]), &gid) || gid == who->gid || !is_member(f[3], who->name))
            continue;
        who->groups[who->group_count++] = gid;
    }
    close(l.fd);
}

int identity_lookup(struct identity *who, struct text user)
{
    char name[USER_BYTES_MAX + 1];
    uint32_t uid = geteuid();
    bool number = true;

    memset(who, 0, sizeof *who);
    if (user.data != NULL) {
        memcpy(name, user.data, user.length);
        name[user.length] = 0;
        number = decimal(name, user.length, &uid);
    }
    bool found = user.data != NULL && passwd_entry(who, name, 0);
    if (!found && !number)
        return ENOENT;
    if (!found && !passwd_entry(who, NULL, uid)) {
        who->uid = who->gid = uid;
        copy(who->home, sizeof who->home, "/");
        copy(who->shell, sizeof who->shell, "/bin/sh");
    }
    supplementary_groups(who);
    return 0;
}

int identity_assume(const struct identity *who)
{
    if (geteuid() != 0)
        return who->uid == geteuid() ? 0 : EPERM;
    /* a user namespace without setgroups (rootless) maps one user only: then there is nothing to drop */
    if (setgroups((size_t)who->group_count, who->groups) < 0 && who->uid != 0)
        return errno;
    if (setresgid(who->gid, who->gid, who->gid) < 0 || setresuid(who->uid, who->uid, who->uid) < 0)
        return errno;
    return 0;
}

struct name_cache { uint32_t id; bool used; char name[USER_BYTES_MAX + 1]; };
#define CACHE_SLOTS 64u

static const char *cached_name(struct name_cache *cache, const char *path, uint32_t id)
{
    struct name_cache *slot = &cache[id % CACHE_SLOTS];
    struct lines l;
    char *line, *f[FIELDS_MAX];
    uint32_t found;

    if (slot->used && slot->id == id)
        return slot->name;
    *slot = (struct name_cache){ .id = id, .used = true };
    if (!lines_open(&l, path))
        return slot->name;
    while (slot->name[0] == 0 && (line = lines_next(&l)) != NULL)
        if (split(line, f) >= 3 && decimal(f[2], strlen(f[2]), &found) && found == id)
            copy(slot->name, sizeof slot->name, f[0]);
    close(l.fd);
    return slot->name;
}

const char *user_name(uid_t uid)
{
    static struct name_cache cache[CACHE_SLOTS];

    return cached_name(cache, passwd_path, uid);
}

const char *group_name(gid_t gid)
{
    static struct name_cache cache[CACHE_SLOTS];

    return cached_name(cache, group_path, gid);
}
