/* Names, and the pax headers that carry them: what tar_read.c leaves to this file. */
#include "tar_pax.h"

#include <string.h>

/* Copy without empty and "." parts. NULL when good. */
const char *tar_clean_path(char *to, const char *from, size_t length)
{
    size_t out = 0;

    if (length == 0)
        return "a name is empty";
    if (length > TAR_PATH_MAX)
        return "a name is too long";
    if (memchr(from, 0, length) != NULL)
        return "a name holds a NUL";
    if (from[0] == '/')
        return "a name is absolute";
    for (size_t i = 0; i < length;) {
        size_t end = i;
        while (end < length && from[end] != '/')
            end++;
        size_t part = end - i;
        if (part == 2 && from[i] == '.' && from[i + 1] == '.')
            return "a name holds ..";
        if (part > 255)
            return "a name is too long";
        if (part > 0 && !(part == 1 && from[i] == '.')) {
            if (out > 0)
                to[out++] = '/';
            memcpy(to + out, from + i, part);
            out += part;
        }
        i = end + 1;
    }
    to[out] = 0;
    return NULL;
}

const char *tar_take_link(char *to, const char *from, size_t length)
{
    if (length == 0 || length > TAR_PATH_MAX || memchr(from, 0, length) != NULL)
        return "a link's target is empty, too long or holds a NUL";
    memcpy(to, from, length);
    to[length] = 0;
    return NULL;
}

static bool parse_decimal(const char *text, size_t length, uint64_t *value)
{
    uint64_t sum = 0;

    if (length == 0 || length > 19)   /* 19 digits cannot overflow */
        return false;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        sum = sum * 10 + (uint64_t)(text[i] - '0');
    }
    *value = sum;
    return true;
}

/* Seconds with an optional fraction; before 1970 counts as 1970. */
static bool parse_time(struct tar_entry *e, const char *text, size_t length)
{
    const char *dot = memchr(text, '.', length);
    size_t whole = dot == NULL ? length : (size_t)(dot - text);
    uint64_t seconds, scale = 100000000;

    e->mtime_s = 0;
    e->mtime_ns = 0;
    if (length > 0 && text[0] == '-')
        return true;
    if (!parse_decimal(text, whole, &seconds))
        return false;
    if (seconds >> 62)
        return false;
    e->mtime_s = (int64_t)seconds;
    for (size_t i = whole + 1; i < length && scale > 0; i++, scale /= 10) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        e->mtime_ns += (uint32_t)((uint64_t)(text[i] - '0') * scale);
    }
    return true;
}

static bool key_is(const char *key, size_t length, const char *name)
{
    return length == strlen(name) && memcmp(key, name, length) == 0;
}

static const char *pax_record(struct tar_reader *t, const char *key, size_t key_length, const char *value, size_t length)
{
    if (key_is(key, key_length, "path")) {
        t->have.path = true;
        return tar_clean_path(t->next.path, value, length);
    }
    if (key_is(key, key_length, "linkpath")) {
        t->have.link = true;
        return tar_take_link(t->next.link, value, length);
    }
    if (key_is(key, key_length, "size")) {
        t->have.size = true;
        return parse_decimal(value, length, &t->next.size) ? NULL : "a bad pax size";
    }
    if (key_is(key, key_length, "mtime")) {
        t->have.mtime = true;
        return parse_time(&t->next, value, length) ? NULL : "a bad pax mtime";
    }
    if (key_length >= 10 && memcmp(key, "GNU.sparse", 10) == 0)
        return "sparse files are not supported";
    return NULL;
}

const char *tar_parse_pax(struct tar_reader *t)
{
    const char *p = (const char *)t->meta_data, *end = p + t->meta_length;

    while (p < end) {
        const char *space = memchr(p, ' ', (size_t)(end - p));
        uint64_t length;
        if (space == NULL || !parse_decimal(p, (size_t)(space - p), &length))
            return "a bad pax header";
        size_t head = (size_t)(space - p) + 1;
        if (length > (uint64_t)(end - p) || length < head + 2 || p[length - 1] != '\n')
            return "a bad pax header";
        const char *key = space + 1, *stop = p + length - 1;
        const char *equals = memchr(key, '=', (size_t)(stop - key));
        if (equals == NULL)
            return "a bad pax header";
        const char *wrong = pax_record(t, key, (size_t)(equals - key), equals + 1, (size_t)(stop - equals - 1));
        if (wrong != NULL)
            return wrong;
        p += length;
    }
    return NULL;
}
