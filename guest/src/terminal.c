/* Terminals of executions: a pseudoterminal of the sandbox's own devpts.
 *
 * What lies at /dev/ptmx is the tenant's to change, so what was opened is looked at, and the program's side is had from
 * the master itself, not by a path. The settings are the kernel's for a new terminal (canonical, echo, signals from
 * keys, ONLCR), and UTF-8 for the erase of characters.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <termios.h>
#include <unistd.h>

#include "agent.h"

#ifndef TIOCGPTPEER
#define TIOCGPTPEER _IO('T', 0x41)
#endif

static bool is_multiplexer(int fd)
{
    struct stat st;

    return fstat(fd, &st) == 0 && S_ISCHR(st.st_mode) && st.st_rdev == makedev(5, 2);
}

static bool set_size(int fd, uint64_t columns, uint64_t rows)
{
    struct winsize size = { .ws_col = (unsigned short)columns, .ws_row = (unsigned short)rows };

    return ioctl(fd, TIOCSWINSZ, &size) == 0;
}

static int slave_of(int master)
{
    int unlocked = 0;

    if (ioctl(master, TIOCSPTLCK, &unlocked) < 0)
        return -1;
    return ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
}

int terminal_open(int *master, int *slave, uint64_t columns, uint64_t rows)
{
    struct termios settings;
    int fd = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC), other = -1, error = 0;

    if (fd < 0)
        return errno;
    if (!is_multiplexer(fd))
        error = ENOTTY;
    else if ((other = slave_of(fd)) < 0 || !set_size(fd, columns, rows) || tcgetattr(other, &settings) < 0)
        error = errno;
    if (error != 0) {
        if (other >= 0)
            close(other);
        close(fd);
        return error;
    }
    settings.c_iflag |= IUTF8;
    (void)tcsetattr(other, TCSANOW, &settings);   /* a preference */
    *master = fd;
    *slave = other;
    return 0;
}

void terminal_resize(const struct stream *s, uint64_t columns, uint64_t rows)
{
    int fd = s->out[0].fd >= 0 ? s->out[0].fd : s->in.fd;

    if (fd >= 0)
        (void)set_size(fd, columns, rows);   /* the kernel tells the foreground by SIGWINCH */
}

int terminal_take(uid_t uid)
{
    if (ioctl(0, TIOCSCTTY, 0) < 0)
        return errno;
    return uid == geteuid() || fchown(0, uid, (gid_t)-1) == 0 ? 0 : errno;
}
