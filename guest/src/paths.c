/* Paths as the kernel resolves them for the user, cut into a folder's descriptor and a last part. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "worker.h"

int sync_folder(int folder)
{
    int error = 0, fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd >= 0) {
        if (fsync(fd) < 0)
            error = errno;
        close(fd);
        return error == EINVAL ? 0 : error;   /* /proc and the like have nothing to sync */
    }
    if (errno != EACCES)
        return errno;
    /* -wx: may be written but not opened; any descriptor of the same file system will do */
    fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || syncfs(fd) < 0)
        error = errno;
    if (fd >= 0)
        close(fd);
    return error;
}

static int sync_parent_of(int at, const char *path)
{
    char parent[PATH_BYTES_MAX + 1];
    const char *slash = strrchr(path, '/');
    size_t length = slash == NULL ? 0 : (size_t)(slash - path);

    if (slash == path)
        length = 1;
    memcpy(parent, path, length);
    parent[length] = 0;
    int fd = openat(at, length == 0 ? "." : parent, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return errno;
    int error = sync_folder(fd);
    close(fd);
    return error;
}

int make_folders_at(int at, const char *path, mode_t mode, unsigned *created)
{
    char prefix[PATH_BYTES_MAX + 1];
    size_t length = strlen(path);
    struct stat st;

    if (length == 0 || length > PATH_BYTES_MAX)
        return ENOENT;
    memcpy(prefix, path, length + 1);
    while (length > 1 && prefix[length - 1] == '/')
        prefix[--length] = 0;
    for (size_t i = 1; i <= length; i++) {
        if (prefix[i] != '/' && prefix[i] != 0)
            continue;
        if (prefix[i - 1] == '/')
            continue;
        char kept = prefix[i];
        prefix[i] = 0;
        int error = 0;
        if (mkdirat(at, prefix, mode) == 0) {
            ++*created;
            error = sync_parent_of(at, prefix);
        } else if (fstatat(at, prefix, &st, 0) < 0) {   /* the errno of mkdir may be EROFS or EACCES for what exists */
            int why = errno;
            error = mkdirat(at, prefix, mode) == 0 ? 0 : errno == EEXIST ? why : errno;
        } else if (!S_ISDIR(st.st_mode)) {
            error = ENOTDIR;
        }
        prefix[i] = kept;
        if (error != 0)
            return error;
    }
    return 0;
}

int open_parent(int at, const char *path, bool create, int *parent, char name[256])
{
    char folder[PATH_BYTES_MAX + 1];
    size_t length = strlen(path);

    while (length > 1 && path[length - 1] == '/')
        length--;
    size_t start = length;
    while (start > 0 && path[start - 1] != '/')
        start--;
    size_t part = length - start;
    if (part > 255)
        return ENAMETOOLONG;
    if (part == 0 || (part == 1 && path[start] == '.') || (part == 2 && path[start] == '.' && path[start + 1] == '.')
        || path[start] == '/')
        return EISDIR;
    memcpy(name, path + start, part);
    name[part] = 0;
    while (start > 1 && path[start - 1] == '/')
        start--;
    memcpy(folder, path, start);
    folder[start] = 0;
    const char *where = start == 0 ? "." : folder;
    *parent = openat(at, where, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (*parent < 0 && errno == ENOENT && create) {
        unsigned created = 0;
        int error = make_folders_at(at, where, 0755, &created);
        if (error != 0)
            return error;
        *parent = openat(at, where, O_PATH | O_DIRECTORY | O_CLOEXEC);
    }
    return *parent < 0 ? errno : 0;
}

void temporary_name(char name[TEMPORARY_SIZE])
{
    static const char digits[] = "0123456789abcdef";
    uint8_t random[8];
    size_t at = sizeof TEMPORARY_PREFIX - 1;

    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        worker_fail("write", errno, "no random bytes");
    memcpy(name, TEMPORARY_PREFIX, at);
    for (unsigned i = 0; i < sizeof random; i++) {
        name[at++] = digits[random[i] >> 4];
        name[at++] = digits[random[i] & 15];
    }
    name[at] = 0;
}
