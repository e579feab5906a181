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

int give(int fd)
{
    if (!worker.gives || fchownat(fd, "", worker.owner.uid, worker.owner.gid, AT_EMPTY_PATH) == 0)
        return 0;
    return errno;
}

/* One step down, the folder made if it is missing. Its descriptor goes to `next`: whatever is renamed meanwhile, only
 * what was made here is given away. */
static int enter_or_make(int at, const char *name, mode_t mode, int *next, unsigned *created)
{
    int error;

    *next = openat(at, name, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (*next >= 0 || errno != ENOENT)
        return *next >= 0 ? 0 : errno;
    if (mkdirat(at, name, mode) < 0) {
        if (errno != EEXIST)
            return errno;
        *next = openat(at, name, O_PATH | O_DIRECTORY | O_CLOEXEC);   /* made by somebody else, or a link to nothing */
        return *next >= 0 ? 0 : errno;
    }
    ++*created;
    *next = openat(at, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (*next < 0)
        return errno;
    error = give(*next);
    return error != 0 ? error : sync_folder(at);
}

int make_folders_at(int at, const char *path, mode_t mode, unsigned *created)
{
    char name[256];
    int here, error = 0;

    if (*path == 0)
        return ENOENT;
    here = openat(at, *path == '/' ? "/" : ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (here < 0)
        return errno;
    while (error == 0) {
        int next = -1;
        path += strspn(path, "/");
        size_t part = strcspn(path, "/");
        if (part == 0)
            break;
        if (part >= sizeof name) {
            error = ENAMETOOLONG;
            break;
        }
        memcpy(name, path, part);
        name[part] = 0;
        path += part;
        error = enter_or_make(here, name, mode, &next, created);
        if (next >= 0) {
            close(here);
            here = next;
        }
    }
    close(here);
    return error;
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
