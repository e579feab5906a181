/* Frames without IO: an input buffer that yields whole frames, and an output buffer that takes them. */
#ifndef BELLGLASS_FRAME_H
#define BELLGLASS_FRAME_H

#include "wire.h"

struct frame {
    uint8_t type, channel;
    uint16_t flags;
    uint32_t stream;
    const uint8_t *payload;   /* inside the input buffer: valid until inbuf_space is called again */
    uint32_t length;
};

/* Two largest frames fit, so that the tail of one is rarely moved for the next. */
#define INBUF_SIZE (2u * (FRAME_MAX + FRAME_HEADER))

struct inbuf {
    uint8_t *data;            /* INBUF_SIZE bytes, owned by the caller */
    size_t start, end, high;
};

enum frame_status { FRAME_NONE, FRAME_READY, FRAME_BAD };

/* Room for the next read; never less than what the frame at hand still needs. */
uint8_t *inbuf_space(struct inbuf *in, size_t *room);
/* Take the next whole frame. FRAME_BAD: longer than the protocol allows, the link is of no use any more. */
enum frame_status inbuf_next(struct inbuf *in, struct frame *frame);

#define OUTBUF_SIZE (DATA_MAX + 128u * 1024u)
/* Data frames are only begun below this mark; what lies above it is kept for control frames. */
#define OUTBUF_DATA_MARK (32u * 1024u)

struct outbuf {
    uint8_t *data;            /* OUTBUF_SIZE bytes, owned by the caller */
    size_t start, end, high;  /* high: as far as bytes ever lay, so that the pages can be given back */
};

size_t outbuf_pending(const struct outbuf *out);
/* Where the payload of a frame of at most `length` bytes goes, or NULL if there is no room now. */
uint8_t *outbuf_reserve(struct outbuf *out, size_t length);
/* Finish the frame reserved last with the length that it really got. */
void outbuf_commit(struct outbuf *out, uint8_t type, uint8_t channel, uint32_t stream, size_t length);

#endif
