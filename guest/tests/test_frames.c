/* frame.c: frames cut anywhere, over-long ones, a full output buffer. */
#include "check.h"

#include <stdlib.h>
#include <string.h>

#include "frame.h"

static void feed(struct inbuf *in, const uint8_t *data, size_t length)
{
    size_t room;
    uint8_t *space = inbuf_space(in, &room);

    if (room < length)
        abort();
    memcpy(space, data, length);
    in->end += length;
}

static size_t make(uint8_t *out, uint8_t type, uint32_t stream, size_t length)
{
    put32(out, (uint32_t)length);
    out[4] = type;
    out[5] = 2;
    put16(out + 6, 0x8001);
    put32(out + 8, stream);
    memset(out + FRAME_HEADER, type, length);
    return FRAME_HEADER + length;
}

static void frame_byte_by_byte(void)
{
    struct inbuf in = { .data = malloc(INBUF_SIZE) };
    uint8_t bytes[64];
    struct frame f;
    size_t length = make(bytes, T_PING, 0x01020304, 5);

    for (size_t i = 0; i < length; i++) {
        CHECK(inbuf_next(&in, &f) == FRAME_NONE);
        feed(&in, bytes + i, 1);
    }
    CHECK(inbuf_next(&in, &f) == FRAME_READY);
    CHECK(f.type == T_PING && f.channel == 2 && f.flags == 0x8001 && f.stream == 0x01020304 && f.length == 5);
    CHECK(memcmp(f.payload, "\3\3\3\3\3", 5) == 0);
    CHECK(inbuf_next(&in, &f) == FRAME_NONE && in.start == in.end);
    free(in.data);
}

static void frames_of_the_largest_size_follow_each_other(void)
{
    struct inbuf in = { .data = malloc(INBUF_SIZE) };
    uint8_t *bytes = malloc(FRAME_HEADER + FRAME_MAX);
    struct frame f;
    int count = 0;
    size_t length = make(bytes, 7, 1, FRAME_MAX);

    for (int i = 0; i < 20; i++)
        for (size_t at = 0; at < length;) {
            size_t room, part = length - at < 100003 ? length - at : 100003;
            inbuf_space(&in, &room);
            CHECK(room > 0);
            part = part < room ? part : room;
            feed(&in, bytes + at, part);
            at += part;
            while (inbuf_next(&in, &f) == FRAME_READY) {
                CHECK(f.length == FRAME_MAX && f.payload[FRAME_MAX - 1] == 7);
                count++;
            }
        }
    CHECK(count == 20);
    free(bytes);
    free(in.data);
}

static void frame_over_the_maximum_is_bad(void)
{
    struct inbuf in = { .data = malloc(INBUF_SIZE) };
    uint8_t bytes[FRAME_HEADER];
    struct frame f;

    make(bytes, 1, 1, 0);
    put32(bytes, FRAME_MAX);
    feed(&in, bytes, sizeof bytes);
    CHECK(inbuf_next(&in, &f) == FRAME_NONE);
    in.start = in.end = 0;
    put32(bytes, FRAME_MAX + 1);
    feed(&in, bytes, sizeof bytes);
    CHECK(inbuf_next(&in, &f) == FRAME_BAD);
    put32(in.data, UINT32_MAX);
    CHECK(inbuf_next(&in, &f) == FRAME_BAD);
    free(in.data);
}

static void output_that_is_full_says_so(void)
{
    struct outbuf out = { .data = malloc(OUTBUF_SIZE) };
    size_t count = 0;

    while (outbuf_reserve(&out, 1000) != NULL) {
        outbuf_commit(&out, T_ACK, 1, 9, 1000);
        count++;
    }
    CHECK(count == OUTBUF_SIZE / (FRAME_HEADER + 1000));
    CHECK(outbuf_pending(&out) == count * (FRAME_HEADER + 1000));
    out.start += 5000;   /* some of it was sent: what is left moves to the front */
    uint8_t *p = outbuf_reserve(&out, 1000);
    CHECK(p != NULL && out.start == 0);
    CHECK(get32(out.data + 60) == 1000);   /* 5000 = 4 * 1012 + 952: the next whole header is 60 further */
    free(out.data);
}

void test_frames(void)
{
    RUN(frame_byte_by_byte);
    RUN(frames_of_the_largest_size_follow_each_other);
    RUN(frame_over_the_maximum_is_bad);
    RUN(output_that_is_full_says_so);
}
