/* A connection to a port of the sandbox: the agent dials its own loopback and relays between the socket and the link.
 *
 * 127.0.0.1 first, then ::1: a program may listen on either. Input waits in the stream's ring; output goes from the
 * socket straight into the link's buffer, since nothing of a connection outlives its link. The socket has a descriptor
 * for each direction, so that one can end before the other.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent.h"

static bool dial(const struct stream *s)
{
    struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_port = htons(s->port) };
    struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_port = htons(s->port), .sin6_addr = IN6ADDR_LOOPBACK_INIT };

    v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (s->second_address)
        return connect(s->in.fd, (struct sockaddr *)&v6, sizeof v6) == 0;
    return connect(s->in.fd, (struct sockaddr *)&v4, sizeof v4) == 0;
}

/* An errno or 0. */
static int open_socket(struct stream *s)
{
    int one = 1;

    s->in.fd = socket(s->second_address ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (s->in.fd < 0)
        return errno;
    (void)setsockopt(s->in.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);   /* what comes is passed on as it is */
    s->out[0].fd = fcntl(s->in.fd, F_DUPFD_CLOEXEC, 3);
    if (s->out[0].fd < 0 || !watch(s->in.fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, s, WATCH_SOCKET))
        return errno;
    s->in.ready = s->out[0].ready = false;
    if (dial(s))
        s->in.ready = true;
    else if (errno != EINPROGRESS)
        return errno;
    return 0;
}

static void close_socket(struct stream *s)
{
    sink_close(&s->in);
    source_close(&s->out[0]);
}

static void not_connected(struct stream *s, int error)
{
    close_socket(s);
    if (!s->second_address) {
        s->second_address = true;
        int second = open_socket(s);
        if (second == 0)
            return;
        close_socket(s);
        if (second != EAFNOSUPPORT && second != EADDRNOTAVAIL && second != ENETUNREACH)
            error = second;   /* without IPv6 in here the first answer counts */
    }
    stream_fail(s, "connect", error, "nothing takes connections on this port");
}

void dial_start(struct stream *s, const uint8_t *payload, size_t length)
{
    const char *wrong = dial_decode(&s->port, payload, length);

    s->phase = PHASE_STARTING;
    if (wrong != NULL) {
        stream_fail(s, "protocol", EINVAL, wrong);
        return;
    }
    if (!stream_map(s, 0, WINDOW_BYTES)) {
        stream_fail(s, "limit", ENOMEM, "no memory for one more connection");
        return;
    }
    int error = open_socket(s);
    if (error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS) {
        close_socket(s);
        stream_fail(s, "limit", error, "no descriptors or memory for one more connection");
    } else if (error != 0) {
        not_connected(s, error);
    }
}

static bool finish_connecting(struct stream *s)
{
    if (!s->in.ready || agent.link.state != LINK_UP)
        return false;
    if (!dial(s) && errno != EISCONN) {   /* the outcome of the attempt; a second one is not made */
        if (errno == EALREADY || errno == EINPROGRESS) {
            s->in.ready = false;
            return false;
        }
        not_connected(s, errno);
        return true;
    }
    uint8_t *p = outbuf_reserve(&agent.link.out, TLV_HEADER + 8);
    if (p == NULL)
        return false;
    struct tlv_writer w = { .data = p, .size = TLV_HEADER + 8 };
    tlv_put_u64(&w, 1, s->second_address ? 6 : 4);
    outbuf_commit(&agent.link.out, T_CONNECTED, 0, s->id, w.used);
    s->phase = PHASE_RUNNING;
    s->out[0].ready = true;
    return true;
}

static bool relay_output(struct stream *s)
{
    struct source *o = &s->out[0];
    int error;
    enum relayed relayed = relay(s, WINDOW_BYTES, &error);

    if (relayed != RELAYED_END)
        return relayed == RELAYED_SOME;
    /* A write that found the reset has taken the error away: the read then looks like an end. */
    if (error == 0)
        error = s->in.error;
    source_close(o);
    if (error != 0) {
        sink_close(&s->in);
        stream_fail(s, "reset", error, "the program reset the connection");
    } else {
        o->eof = true;
    }
    return true;
}

bool dial_pump(struct stream *s)
{
    bool changed = false;

    if (s->final_type != 0)
        return false;
    if (s->phase == PHASE_STARTING && !finish_connecting(s))
        return false;
    if (s->phase != PHASE_RUNNING)
        return true;   /* refused, or on to the second address */
    changed |= sink_drain(&s->in);
    if (s->in.eof && s->in.consumed == s->in.received && s->in.fd >= 0) {
        (void)shutdown(s->in.fd, SHUT_WR);   /* fails only when the connection is gone, which the read tells */
        sink_close(&s->in);
        changed = true;
    }
    changed |= relay_output(s);
    if (s->out[0].eof && s->in.error != 0) {
        stream_fail(s, "reset", s->in.error, "the program takes no more");
        changed = true;
    } else if (s->out[0].eof && s->in.eof && s->in.fd < 0 && s->final_type == 0) {
        stream_finish(s, T_RESULT, (const uint8_t *)"", 0);
        changed = true;
    }
    return changed;
}

void dial_abort(struct stream *s)
{
    struct linger at_once = { .l_onoff = 1, .l_linger = 0 };
    int fd = s->in.fd >= 0 ? s->in.fd : s->out[0].fd;

    if (s->final_type != 0)
        return;
    if (fd >= 0)
        (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close_socket(s);
    stream_fail(s, "aborted", ECONNABORTED, "aborted");
}
