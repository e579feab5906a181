/* List and stat. A list goes down without following links; what vanishes while it runs is left out. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "worker.h"

static uint8_t buffer[65536];
static size_t held;
static uint64_t entries;
static bool cut;
static char path[PATH_BYTES_MAX + 1];

static void flush(void)
{
    output_write(buffer, held);
    held = 0;
}

static void put_entry(int at, const char *base, const struct stat *st)
{
    if (sizeof buffer - held < REPORT_MAX)
        flush();
    struct tlv_writer w = { .data = buffer + held + 4, .size = REPORT_MAX - 4 };
    record_put(&w, path, at, base, st);
    put32(buffer + held, (uint32_t)w.used);
    held += 4 + w.used;
    entries++;
}

static void list_folder(int fd, size_t length, unsigned depth)
{
    DIR *folder = fdopendir(fd);
    struct dirent *entry;
    struct stat st;

    if (folder == NULL)
        worker_fail("read", errno, "cannot list");
    while (!cut && (entry = readdir(folder)) != NULL) {
        const char *name = entry->d_name;
        size_t part = strlen(name);
        worker_check();
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
            continue;
        if (entries >= worker.r->max_entries || length + part + 1 > PATH_BYTES_MAX) {
            cut = true;
            break;
        }
        if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        memcpy(path + length, name, part + 1);
        put_entry(fd, name, &st);
        if (!S_ISDIR(st.st_mode) || !flag(FILE_RECURSIVE) || depth + 1 >= worker.r->depth)
            continue;
        int inner = openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (inner < 0) {
            cut |= errno == EMFILE || errno == ENFILE;   /* a folder that may not be read is listed, but not entered */
            continue;
        }
        if (depth == DEPTH_MAX) {
            close(inner);
            cut = true;
            break;
        }
        path[length + part] = '/';
        list_folder(inner, length + part + 1, depth + 1);
    }
    closedir(folder);
}

void work_list(void)
{
    static uint8_t result[PATH_BYTES_MAX + 64];
    struct tlv_writer w = { .data = result, .size = sizeof result };
    int flags = O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC | (flag(FILE_NOFOLLOW) ? O_NOFOLLOW : 0);
    int fd = open(worker.path, flags);

    if (fd < 0)
        worker_fail(errno == ENOTDIR ? "type" : "path", errno, "cannot open the folder");
    list_folder(fd, 0, 0);
    flush();
    tlv_put_u64(&w, 2, worker.sent);
    tlv_put_u64(&w, 4, cut);
    base_put(&w);
    worker_done(&w);
}

void work_stat(void)
{
    static uint8_t result[REPORT_MAX], record[REPORT_MAX - 256];
    struct tlv_writer w = { .data = result, .size = sizeof result };
    struct tlv_writer entry = { .data = record, .size = sizeof record };
    struct stat st;

    if (fstatat(AT_FDCWD, worker.path, &st, flag(FILE_NOFOLLOW) ? AT_SYMLINK_NOFOLLOW : 0) < 0)
        worker_fail("path", errno, "cannot stat");
    record_put(&entry, worker.path, AT_FDCWD, worker.path, &st);
    tlv_put(&w, 1, entry.data, entry.used);
    base_put(&w);
    worker_done(&w);
}
