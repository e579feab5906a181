/* The connection to the node: dialled again for ever, greeted with HELLO, silent until WELCOME.
 *
 * Descriptors arrive with the first byte of a frame but are handed out by the kernel with the read that touches it, so
 * they wait in a queue in the order of their frames; what no frame claims is closed when the input is empty.
 */
#include "agent.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKOFF_FIRST_MS 10
#define BACKOFF_MAX_MS 200   /* a restarted node is to find its sandboxes at once; a dial costs some 20 us */
#define READ_BUDGET_BYTES (1u << 20)
#define SOCKET_BUFFER_BYTES (1 << 20)

#if defined(__x86_64__)
#define MACHINE "x86_64"
#elif defined(__aarch64__)
#define MACHINE "aarch64"
#else
#error "no name for this machine"
#endif

static void drop_fds(struct link *link)
{
    for (unsigned i = 0; i < link->fd_count; i++)
        close(link->fds[i]);
    link->fd_count = 0;
}

int link_take_fd(void)
{
    struct link *link = &agent.link;

    if (link->fd_count == 0)
        return -1;
    int fd = link->fds[0];
    link->fd_count--;
    memmove(link->fds, link->fds + 1, link->fd_count * sizeof link->fds[0]);
    return fd;
}

static void retry_later(struct link *link)
{
    link->state = LINK_DOWN;
    link->retry_at_ms = now_ms() + link->backoff_ms;
    link->backoff_ms = link->backoff_ms * 2 > BACKOFF_MAX_MS ? BACKOFF_MAX_MS : link->backoff_ms * 2;
}

static void hello(struct link *link)
{
    size_t size = 256 + STREAM_SLOTS * (TLV_HEADER + 5u + TLV_HEADER + 13u);
    uint8_t *p = outbuf_reserve(&link->out, size);
    struct tlv_writer w = { .data = p, .size = size };

    tlv_put_u64(&w, 1, PROTOCOL_VERSION);
    tlv_put_u64(&w, 2, FEATURE_FD_PASSING | FEATURE_FILES | FEATURE_ARCHIVES | FEATURE_INPUT_OFFSETS | FEATURE_DIAL
        | FEATURE_TERMINAL | FEATURE_ATTRIBUTES | FEATURE_WATCH);
    tlv_put(&w, 3, agent.boot_id, sizeof agent.boot_id);
    tlv_put_u64(&w, 4, link->epoch);
    tlv_put_string(&w, 5, AGENT_VERSION);
    tlv_put_string(&w, 6, MACHINE);
    for (unsigned i = 0; i < stream_high; i++) {
        const struct stream *s = &streams[i];
        if (s->kind != KIND_EXECUTION || s->orphan)
            continue;
        uint8_t live[5];
        put32(live, s->id);
        live[4] = T_START;
        tlv_put(&w, 7, live, sizeof live);
        if (s->in.window == 0)
            continue;
        uint8_t input[13];   /* a node that was restarted goes on from there */
        put32(input, s->id);
        put64(input + 4, s->in.received);
        input[12] = s->in.eof;
        tlv_put(&w, 8, input, sizeof input);
    }
    outbuf_commit(&link->out, T_HELLO, 0, 0, w.used);
}

void link_dial(void)
{
    struct link *link = &agent.link;
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    size_t length = strlen(agent.socket_path);

    if (link->backoff_ms == 0)
        link->backoff_ms = BACKOFF_FIRST_MS;
    memcpy(address.sun_path, agent.socket_path, length);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        retry_later(link);
        return;
    }
    int size = SOCKET_BUFFER_BYTES;   /* the kernel cuts it at net.core.wmem_max: best effort */
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) < 0
        || !watch(fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, NULL, WATCH_LINK)) {
        close(fd);
        retry_later(link);
        return;
    }
    link->fd = fd;
    link->state = LINK_GREETING;
    link->epoch++;
    link->in.start = link->in.end = 0;
    link->out.start = link->out.end = 0;
    link->pong_due = false;
    link->readable = link->writable = true;
    hello(link);
}

void link_lost(void)
{
    struct link *link = &agent.link;
    int64_t now = now_ms();

    if (link->state == LINK_DOWN)
        return;
    close(link->fd);
    link->fd = -1;
    drop_fds(link);
    for (unsigned i = 0; i < stream_high; i++) {
        struct stream *s = &streams[i];
        if (s->kind == KIND_FREE || s->orphan)
            continue;
        if (s->phase == PHASE_ASSEMBLING) {
            stream_free(s);
        } else if (s->kind == KIND_DIAL) {
            dial_abort(s);
            stream_free(s);
        } else if (s->kind == KIND_FILE) {
            s->orphan = true;
            operation_abort(s, now);
        } else {
            stream_rewind(s);
        }
    }
    retry_later(link);
}

/* Queue the descriptors of one message; false if the peer sends more than any honest one would. */
static bool queue_fds(struct link *link, struct msghdr *message)
{
    bool fits = (message->msg_flags & MSG_CTRUNC) == 0;
    const struct cmsghdr *c = CMSG_FIRSTHDR(message);   /* a unix socket has no other kind unless asked for */

    if (c == NULL || c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
        return fits;
    size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; i++) {
        int fd;
        memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
        if (link->fd_count < LINK_FDS_MAX) {
            link->fds[link->fd_count++] = fd;
        } else {
            close(fd);
            fits = false;
        }
    }
    return fits;
}

bool link_read(void)
{
    struct link *link = &agent.link;
    size_t budget = READ_BUDGET_BYTES;

    while (link->state != LINK_DOWN && link->readable && budget > 0) {
        union { struct cmsghdr align; char bytes[CMSG_SPACE(8 * sizeof(int))]; } control;
        struct iovec part;
        struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1,
                                  .msg_control = &control, .msg_controllen = sizeof control };
        part.iov_base = inbuf_space(&link->in, &part.iov_len);
        ssize_t n = recvmsg(link->fd, &message, MSG_CMSG_CLOEXEC);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN) {
            link->readable = false;
            break;
        }
        if (n <= 0 || !queue_fds(link, &message)) {
            link_lost();
            return false;
        }
        link->in.end += (size_t)n;
        budget -= (size_t)n < budget ? (size_t)n : budget;
        struct frame frame;
        enum frame_status status;
        while ((status = inbuf_next(&link->in, &frame)) == FRAME_READY) {
            if (!dispatch(&frame)) {
                link_lost();
                return false;
            }
        }
        if (status == FRAME_BAD) {
            link_lost();
            return false;
        }
        if (link->in.start == link->in.end)
            drop_fds(link);
    }
    return link->state != LINK_DOWN && link->readable;
}

bool link_emit(void)
{
    struct link *link = &agent.link;

    if (!link->pong_due || link->state != LINK_UP)
        return false;
    uint8_t *p = outbuf_reserve(&link->out, link->ping_length);
    if (p == NULL)
        return false;
    memcpy(p, link->ping, link->ping_length);
    outbuf_commit(&link->out, T_PONG, 0, 0, link->ping_length);
    link->pong_due = false;
    return true;
}

bool link_flush(void)
{
    struct link *link = &agent.link;
    bool changed = false;

    while (link->state != LINK_DOWN && link->writable && outbuf_pending(&link->out) > 0) {
        ssize_t n = send(link->fd, link->out.data + link->out.start, outbuf_pending(&link->out), MSG_NOSIGNAL);
        if (n >= 0) {
            link->out.start += (size_t)n;
            changed = true;
        } else if (errno == EAGAIN) {
            link->writable = false;
        } else if (errno != EINTR) {
            link_lost();
            return true;
        }
    }
    return changed;
}
