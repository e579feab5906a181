/* Extended attributes user.* as a file's attributes: told in stat records, replaced as a whole by a write. */
#include <errno.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "worker.h"

#define PREFIX "user."
#define PREFIX_LENGTH (sizeof PREFIX - 1)
#define NAMES_MAX 65536u   /* the kernel's own limit of a list */

static char names[NAMES_MAX];
static char value[ATTRIBUTES_TOLD_MAX];

static bool next_name(const char **at, ssize_t length, const char **name)
{
    while (*at < names + length) {
        *name = *at;
        *at += strlen(*at) + 1;
        if (strncmp(*name, PREFIX, PREFIX_LENGTH) == 0 && (*name)[PREFIX_LENGTH] != 0)
            return true;
    }
    return false;
}

void attributes_put(struct tlv_writer *w, const char *path)
{
    static uint8_t element[ATTRIBUTES_TOLD_MAX];
    ssize_t length = listxattr(path, names, sizeof names);
    const char *at = names, *name;
    size_t told = 0;

    if (length <= 0)
        return;   /* none, or a file system without them */
    while (next_name(&at, length, &name)) {
        size_t part = strlen(name) - PREFIX_LENGTH + 1;   /* with its NUL */
        ssize_t n = getxattr(path, name, value, sizeof value);
        if (n < 0 && errno != ERANGE)
            continue;   /* removed meanwhile, or not to be read by this user */
        if (n < 0 || told + part + (size_t)n > sizeof element) {
            tlv_put_u64(w, 17, 1);
            return;
        }
        memcpy(element, name + PREFIX_LENGTH, part);
        memcpy(element + part, value, (size_t)n);
        tlv_put(w, 13, element, part + (size_t)n);
        told += part + (size_t)n;
    }
}

static bool is_wanted(const char *name)
{
    struct tlv_reader reader;
    struct tlv t;

    tlv_open(&reader, worker.r->payload, worker.r->payload_length);
    while (tlv_next(&reader, &t))
        if (t.tag == 13 && strcmp((const char *)t.value, name) == 0)   /* the value holds a NUL: file_decode saw to it */
            return true;
    return false;
}

_Noreturn static void cannot_set(int fd)
{
    struct statvfs room;
    int error = errno;

    /* A file system answers ENOSPC as well when they are too large for what it keeps beside a file. */
    if (error == ENOSPC && fstatvfs(fd, &room) == 0 && room.f_bavail > 0)
        error = E2BIG;
    if (error == E2BIG || error == ERANGE)
        worker_fail("limit", E2BIG, "more attributes than the file system keeps of one file");
    worker_fail("attributes", error, "cannot set the attributes");
}

void attributes_replace(int fd)
{
    struct tlv_reader reader;
    struct tlv t;
    char full[256];
    ssize_t length;
    const char *at = names, *name;

    if (!flag(FILE_ATTRIBUTES))
        return;
    length = flistxattr(fd, names, sizeof names);
    if (length < 0 && errno != EOPNOTSUPP)
        cannot_set(fd);
    while (length > 0 && next_name(&at, length, &name))
        if (!is_wanted(name + PREFIX_LENGTH) && fremovexattr(fd, name) < 0 && errno != ENODATA)
            cannot_set(fd);
    tlv_open(&reader, worker.r->payload, worker.r->payload_length);
    while (tlv_next(&reader, &t)) {
        if (t.tag != 13)
            continue;
        size_t part = strlen((const char *)t.value) + 1;
        memcpy(full, PREFIX, PREFIX_LENGTH);
        memcpy(full + PREFIX_LENGTH, t.value, part);
        if (fsetxattr(fd, full, t.value + part, t.length - part, 0) < 0)
            cannot_set(fd);
    }
}
