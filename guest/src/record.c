/* Stat records: what RESULT and the output of a list say of one file. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

#include "worker.h"

static char type_letter(mode_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFDIR: return 'd';
    case S_IFLNK: return 'l';
    case S_IFIFO: return 'p';
    case S_IFSOCK: return 's';
    case S_IFCHR: return 'c';
    case S_IFBLK: return 'b';
    default: return 'f';
    }
}

/* What a link leads to; nothing for one that leads nowhere, or where this user may not look. */
static void put_resolved(struct tlv_writer *w, const char *path)
{
    char resolved[PATH_MAX], letter;
    struct stat st;

    if (realpath(path, resolved) == NULL || stat(resolved, &st) < 0)
        return;
    letter = type_letter(st.st_mode);
    tlv_put_string(w, 14, resolved);
    tlv_put(w, 15, &letter, 1);
    tlv_put_u64(w, 16, st.st_mode & 07777);
}

void record_put(struct tlv_writer *w, const char *name, int at, const char *base, const struct stat *st)
{
    char letter = type_letter(st->st_mode), target[PATH_BYTES_MAX + 1];

    tlv_put_string(w, 1, name);
    tlv_put(w, 2, &letter, 1);
    tlv_put_u64(w, 3, st->st_mode & 07777);
    tlv_put_u64(w, 4, st->st_uid);
    tlv_put_u64(w, 5, st->st_gid);
    tlv_put_u64(w, 6, (uint64_t)st->st_size);
    tlv_put_u64(w, 7, (uint64_t)st->st_mtim.tv_sec * 1000000000u + (uint64_t)st->st_mtim.tv_nsec);
    tlv_put_u64(w, 8, (uint64_t)st->st_blocks * 512u);
    if (letter == 'l') {
        ssize_t n = readlinkat(at, base, target, sizeof target);
        if (n >= 0)
            tlv_put(w, 9, target, (size_t)n);
    }
    tlv_put_u64(w, 10, st->st_ino);
    tlv_put_string(w, 11, user_name(st->st_uid));
    tlv_put_string(w, 12, group_name(st->st_gid));
    if (at != AT_FDCWD && fchdir(at) < 0)
        return;
    if (letter == 'l')
        put_resolved(w, base);
    else if (letter == 'f' || letter == 'd')
        attributes_put(w, base);
}

void base_put(struct tlv_writer *w)
{
    if (worker.r->base.data == NULL)
        tlv_put_string(w, 6, worker.gives ? worker.owner.home : worker.who.home);
}

void record_result(struct tlv_writer *w, const char *name, int at, const char *base)
{
    static uint8_t bytes[REPORT_MAX - 256];
    struct tlv_writer record = { .data = bytes, .size = sizeof bytes };
    struct stat st;

    if (fstatat(at, base, &st, AT_SYMLINK_NOFOLLOW) < 0)
        worker_fail("path", errno, "cannot stat the result");
    record_put(&record, name, at, base, &st);
    tlv_put(w, 1, record.data, record.used);
    base_put(w);
}
