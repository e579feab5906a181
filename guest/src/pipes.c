/* Descriptors between the agent and what runs for a stream: kept or closed together, and relayed to the link.
 *
 * What is relayed goes from the descriptor straight into the link's buffer: nothing of it is kept for a second link.
 */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "agent.h"

void close_all(int *fds, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

bool keep_end(int fd, uint32_t events, const struct stream *s, enum watch_what what)
{
    return fcntl(fd, F_SETFL, O_NONBLOCK) == 0 && watch(fd, events, s, what);
}

enum relayed relay(struct stream *s, uint32_t window, int *error)
{
    struct source *o = &s->out[0];

    if (o->fd < 0 || !o->ready || agent.link.state != LINK_UP || outbuf_pending(&agent.link.out) >= OUTBUF_DATA_MARK)
        return RELAYED_NOTHING;
    size_t want = window - (size_t)(o->sent - o->acked);
    if (want > DATA_MAX)
        want = DATA_MAX;
    uint8_t *p = want > 0 ? outbuf_reserve(&agent.link.out, DATA_PREFIX + want) : NULL;
    if (p == NULL)
        return RELAYED_NOTHING;
    ssize_t n = read(o->fd, p + DATA_PREFIX, want);
    if (n > 0) {
        put64(p, o->sent);
        outbuf_commit(&agent.link.out, T_DATA, 1, s->id, DATA_PREFIX + (size_t)n);
        o->sent += (uint64_t)n;
        o->tail = o->sent;
        return RELAYED_SOME;
    }
    if (n < 0 && errno == EINTR)
        return RELAYED_SOME;
    if (n < 0 && errno == EAGAIN) {
        o->ready = false;
        return RELAYED_NOTHING;
    }
    *error = n < 0 ? errno : 0;
    return RELAYED_END;
}
