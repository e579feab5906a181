/* How a forked child or worker tells the agent what became of it: one SOCK_SEQPACKET message a record, its first byte
 * the kind. The child's end is close-on-exec, so the end of the channel without a failure means that exec succeeded. */
#include "agent.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

bool report_pair(int fds[2])
{
    return socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) == 0;
}

void report_send(int fd, enum report_kind kind, const uint8_t *payload, size_t length)
{
    uint8_t byte = (uint8_t)kind;
    struct iovec parts[2] = { { &byte, 1 }, { (void *)(uintptr_t)payload, length } };
    struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };

    while (sendmsg(fd, &message, MSG_NOSIGNAL) < 0 && errno == EINTR)
        ;
}

void report_failure(int fd, const char *stage, int error, const char *message)
{
    uint8_t payload[512];

    report_send(fd, REPORT_FAILED, payload, tlv_failed(payload, sizeof payload, stage, error, message));
    _exit(127);
}
