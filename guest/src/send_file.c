/* A regular file's bytes into the output: the page cache's pages go into the pipe without a copy, where the file system
 * can do that.
 *
 * Without `keep` they are dropped from the page cache behind the reading, so that a file which it cannot hold does not
 * push out all that the sandbox has there. Pages in the pipe cannot be dropped: the last bytes are copied, which lets
 * all that went before them out of the pipe.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/sendfile.h>
#include <unistd.h>

#include "worker.h"

#define PIECE_BYTES (1u << 20)
#define DROP_BYTES (8u << 20)
#define HELD_BYTES (2u << 20)   /* no less than what a pipe holds, and than a large folio */

/* A folio that reaches beyond the end of a drop stays; so each begins again a folio before where the last one ended. */
static void drop(int fd, uint64_t first, uint64_t from, uint64_t to)
{
    from = from - first > HELD_BYTES ? from - HELD_BYTES : first;
    if (to > from)   /* a length of 0 would mean the rest of the file */
        (void)posix_fadvise(fd, (off_t)from, (off_t)(to - from), POSIX_FADV_DONTNEED);
}

static size_t at_most(uint64_t left, size_t most) { return left < most ? (size_t)left : most; }

static ssize_t copy_piece(int fd, uint64_t left)
{
    ssize_t n = read(fd, io_buffer, at_most(left, IO_BYTES));

    if (n > 0)
        output_write(io_buffer, (size_t)n);
    return n;
}

static ssize_t splice_piece(int fd, uint64_t left)
{
    ssize_t n = sendfile(worker.out_fd, fd, NULL, at_most(left, PIECE_BYTES));

    if (n > 0)
        worker.sent += (uint64_t)n;
    return n;
}

uint64_t send_file(int fd, uint64_t left, bool keep)
{
    uint64_t first = (uint64_t)lseek(fd, 0, SEEK_CUR), at = first, dropped = first;
    uint64_t tail = keep ? 0 : HELD_BYTES;
    bool can_splice = true;

    posix_fadvise(fd, (off_t)first, 0, POSIX_FADV_SEQUENTIAL);
    while (left > 0) {
        worker_check();
        bool splices = can_splice && left > tail;
        ssize_t n = splices ? splice_piece(fd, left - tail) : copy_piece(fd, left);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && splices && (errno == EINVAL || errno == ENOSYS)) {
            can_splice = false;
            continue;
        }
        if (n < 0)
            worker_fail(errno == EPIPE ? "aborted" : "read", errno, "cannot read");
        if (n == 0)
            break;
        at += (uint64_t)n;
        left -= (uint64_t)n;
        if (!keep && at - dropped >= DROP_BYTES + HELD_BYTES) {
            drop(fd, first, dropped, at - HELD_BYTES);
            dropped = at - HELD_BYTES;
        }
    }
    if (!keep)
        drop(fd, first, dropped, at);
    return left;
}
