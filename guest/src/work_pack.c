/* Archive out: a file, or what is in a folder, as a tar on channel 1. Links are not followed, hard links are files,
 * sockets, FIFOs and devices are left out. A file that shrinks while it is read fails the whole: zeros would be a lie. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "tar.h"
#include "worker.h"

static char path[PATH_BYTES_MAX + 1];
static uint64_t entries, bytes;

static void count(uint64_t size)
{
    if (entries >= worker.r->max_entries)
        worker_fail("limit", E2BIG, "more entries than allowed");
    if (size > worker.r->max_bytes - bytes)
        worker_fail("limit", EFBIG, "more bytes than allowed");
    entries++;
    bytes += size;
}

static size_t put_header(const struct stat *st, char type, const char *link)
{
    struct tar_member m = {
        .path = path, .link = link, .type = type, .mode = st->st_mode & 07777, .uid = st->st_uid, .gid = st->st_gid,
        .size = type == TAR_FILE ? (uint64_t)st->st_size : 0, .mtime_s = st->st_mtim.tv_sec,
    };

    return tar_header(io_buffer, &m);
}

static void pad(uint64_t size)
{
    static const uint8_t zeros[TAR_BLOCK];

    output_write(zeros, (size_t)((TAR_BLOCK - size % TAR_BLOCK) % TAR_BLOCK));
}

static void pack_file(int at, const char *name, int follow)
{
    struct stat st;
    int fd = openat(at, name, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | follow);

    if (fd < 0 && errno == ENOENT && follow != 0)
        return;
    if (fd < 0)
        worker_fail("path", errno, "a file cannot be opened");
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return;   /* swapped for something else since it was listed */
    }
    uint64_t size = (uint64_t)st.st_size;
    count(size);
    size_t head = put_header(&st, TAR_FILE, NULL);
    if (size > IO_BYTES - TAR_HEADER_MAX - TAR_BLOCK) {
        output_write(io_buffer, head);
        if (send_file(fd, size, true) > 0)
            worker_fail("read", EIO, "a file shrank while it was read");
        pad(size);
    } else {   /* small: header, bytes and padding with one write */
        size_t done = 0;
        while (done < size) {
            ssize_t n = read(fd, io_buffer + head + done, (size_t)size - done);
            if (n < 0 && errno == EINTR)
                continue;
            if (n <= 0)
                worker_fail("read", n < 0 ? errno : EIO, "a file cannot be read, or shrank meanwhile");
            done += (size_t)n;
        }
        size_t padding = (size_t)((TAR_BLOCK - size % TAR_BLOCK) % TAR_BLOCK);
        memset(io_buffer + head + done, 0, padding);
        output_write(io_buffer, head + done + padding);
    }
    close(fd);
}

static void pack_link(int at, const char *name, const struct stat *st)
{
    char target[PATH_BYTES_MAX + 1];
    ssize_t n = readlinkat(at, name, target, PATH_BYTES_MAX);

    if (n < 0)
        return;
    target[n] = 0;
    count(0);
    output_write(io_buffer, put_header(st, TAR_SYMLINK, target));
}

static void pack_folder(int fd, size_t length, unsigned depth)
{
    DIR *folder = fdopendir(fd);
    struct dirent *entry;
    struct stat st;

    if (folder == NULL)
        worker_fail("read", errno, "a folder cannot be listed");
    while ((entry = readdir(folder)) != NULL) {
        const char *name = entry->d_name;
        size_t part = strlen(name);
        worker_check();
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        if (length + part + 2 > PATH_BYTES_MAX || depth == DEPTH_MAX)
            worker_fail("limit", ENAMETOOLONG, "the tree is too deep");
        memcpy(path + length, name, part + 1);
        if (S_ISREG(st.st_mode)) {
            pack_file(fd, name, O_NOFOLLOW);
        } else if (S_ISLNK(st.st_mode)) {
            pack_link(fd, name, &st);
        } else if (S_ISDIR(st.st_mode)) {
            int inner = openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
            if (inner < 0 && (errno == ENOENT || errno == ENOTDIR || errno == ELOOP))
                continue;
            if (inner < 0)
                worker_fail("path", errno, "a folder cannot be opened");
            count(0);
            output_write(io_buffer, put_header(&st, TAR_FOLDER, NULL));
            path[length + part] = '/';
            pack_folder(inner, length + part + 1, depth + 1);
        }
    }
    closedir(folder);
}

void work_archive_out(void)
{
    static const uint8_t end[2 * TAR_BLOCK];
    uint8_t result[64];
    struct tlv_writer w = { .data = result, .size = sizeof result };
    struct stat st;
    char name[256];
    int folder;

    if (fstatat(AT_FDCWD, worker.path, &st, flag(FILE_NOFOLLOW) ? AT_SYMLINK_NOFOLLOW : 0) < 0)
        worker_fail("path", errno, "cannot stat");
    if (S_ISDIR(st.st_mode)) {
        int fd = open(worker.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0)
            worker_fail("path", errno, "cannot open the folder");
        pack_folder(fd, 0, 0);
    } else if (S_ISREG(st.st_mode)) {
        int error = open_parent(AT_FDCWD, worker.path, false, &folder, name);
        if (error != 0)
            worker_fail("path", error, "cannot enter the file's folder");
        memcpy(path, name, strlen(name) + 1);
        pack_file(folder, name, 0);
    } else {
        worker_fail("type", EINVAL, "is neither a folder nor a regular file");
    }
    output_write(end, sizeof end);
    tlv_put_u64(&w, 2, bytes);
    tlv_put_u64(&w, 5, entries);
    worker_done(&w);
}
