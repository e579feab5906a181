/* mkdir, move and remove. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "worker.h"

static char copy_name[TEMPORARY_SIZE];
static int copy_folder;

static void undo_copy(void) { (void)remove_tree(copy_folder, copy_name, true); }

_Noreturn static void done(int folder, const char *shown, const char *name, bool created)
{
    static uint8_t result[REPORT_MAX];
    struct tlv_writer w = { .data = result, .size = sizeof result };

    record_result(&w, shown, folder, name);
    tlv_put_u64(&w, 3, created);
    worker_done(&w);
}

static void sync_or_fail(int folder)
{
    int error = sync_folder(folder);

    if (error != 0)
        worker_fail("write", error, "cannot sync the folder");
}

static void give_or_fail(int folder, const char *name)
{
    int fd, error;

    if (!worker.gives)
        return;
    fd = openat(folder, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    error = fd < 0 ? errno : give(fd);
    if (error != 0)
        worker_fail("write", error, "cannot give the folder to its owner");
    close(fd);
}

void work_mkdir(void)
{
    char name[256];
    struct stat st;
    int folder, error;

    /* "a/.", "/" and ".." are there already, or are not */
    error = open_parent(AT_FDCWD, worker.path, flag(FILE_PARENTS), &folder, name);
    if (error == EISDIR && flag(FILE_PARENTS) && stat(worker.path, &st) == 0 && S_ISDIR(st.st_mode))
        done(AT_FDCWD, worker.path, worker.path, false);
    if (error != 0)
        worker_fail("path", error == EISDIR ? EEXIST : error, "cannot enter the folder above");
    if (mkdirat(folder, name, wanted_mode(0777)) == 0) {
        give_or_fail(folder, name);
    } else {
        if (errno != EEXIST || !flag(FILE_PARENTS))
            worker_fail("path", errno, "cannot create the folder");
        if (fstatat(folder, name, &st, 0) < 0 || !S_ISDIR(st.st_mode))
            worker_fail("type", EEXIST, "exists and is no folder");
        done(folder, worker.path, name, false);
    }
    sync_or_fail(folder);
    done(folder, worker.path, name, true);
}

/* From one file system to another, or a folder of a lower overlay layer: copy beside the destination, then swap. */
static void move_by_copy(int from, const char *from_name, int to, const char *to_name)
{
    int error;

    temporary_name(copy_name);
    copy_folder = to;
    worker.undo = undo_copy;
    error = copy_tree(from, from_name, to, copy_name, 0);
    if (error != 0)
        worker_fail("write", error, "cannot copy to the other file system");
    int fd = openat(to, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0 && syncfs(fd) < 0)
        worker_fail("write", errno, "cannot sync the copy");
    worker_check();
    if (syscall(SYS_renameat2, to, copy_name, to, to_name, flag(FILE_OVERWRITE) ? 0 : 1) < 0)
        worker_fail("path", errno, "cannot rename");
    worker.undo = NULL;
    sync_or_fail(to);
    error = remove_tree(from, from_name, true);
    if (error != 0)
        worker_fail("path", error, "copied, but the source cannot be removed");
}

void work_move(void)
{
    char from_name[256], to_name[256];
    int from, to, error;
    bool existed;

    error = open_parent(AT_FDCWD, worker.path, false, &from, from_name);
    if (error != 0)
        worker_fail("path", error == EISDIR ? EINVAL : error, "cannot enter the source's folder");
    error = open_parent(AT_FDCWD, worker.path2, flag(FILE_PARENTS), &to, to_name);
    if (error != 0)
        worker_fail("path", error == EISDIR ? EEXIST : error, "cannot enter the destination's folder");
    existed = faccessat(to, to_name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
    if (syscall(SYS_renameat2, from, from_name, to, to_name, flag(FILE_OVERWRITE) ? 0 : 1) < 0) {
        if (errno != EXDEV)
            worker_fail("path", errno, "cannot move");
        if (existed && !flag(FILE_OVERWRITE))
            worker_fail("path", EEXIST, "exists already");
        move_by_copy(from, from_name, to, to_name);
    }
    sync_or_fail(to);
    sync_or_fail(from);
    done(to, worker.path2, to_name, !existed);
}

void work_remove(void)
{
    struct tlv_writer nothing = { 0 };
    char name[256];
    struct stat st;
    int folder, error;

    error = open_parent(AT_FDCWD, worker.path, false, &folder, name);
    if (error != 0)
        worker_fail("path", error == EISDIR ? EINVAL : error, "cannot enter the folder above");
    if (fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        worker_fail("path", errno, "cannot stat");
    if (flag(FILE_RECURSIVE))
        error = remove_tree(folder, name, false);
    else if (unlinkat(folder, name, S_ISDIR(st.st_mode) ? AT_REMOVEDIR : 0) < 0)
        error = errno;
    if (error != 0)
        worker_fail("path", error, "cannot remove");
    sync_or_fail(folder);
    worker_done(&nothing);
}
