/* stream.c and emit.c: the table's limits, input by offset within its window, output that is sent again. */
#include "check.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent.h"

static void clear(void)
{
    while (stream_high > 0)
        stream_free(&streams[stream_high - 1]);
}

static void table_is_bounded(void)
{
    bool refuse = false;

    for (uint32_t i = 0; i < STREAM_SLOTS; i++) {
        CHECK(stream_new(i + 1, KIND_EXECUTION, &refuse) != NULL);
        CHECK(refuse == (i >= STREAMS_MAX));
    }
    CHECK(stream_new(9999, KIND_EXECUTION, &refuse) == NULL && stream_new(9999, KIND_DIAL, &refuse) == NULL);
    CHECK(stream_find(STREAM_SLOTS) != NULL && stream_find(9999) == NULL);
    stream_free(stream_find(10));
    CHECK(stream_find(10) == NULL && stream_new(9999, KIND_FILE, &refuse) == &streams[9]);
    clear();
}

static void connections_and_programs_keep_their_own_places(void)
{
    bool refuse = true;

    for (uint32_t i = 0; i < DIALS_MAX; i++)
        CHECK(stream_new(i + 1, KIND_DIAL, &refuse) != NULL && !refuse);
    CHECK(stream_new(1000, KIND_DIAL, &refuse) != NULL && refuse);
    for (uint32_t i = 0; i < STREAMS_MAX - 1; i++)
        CHECK(stream_new(2000 + i, i & 1 ? KIND_FILE : KIND_EXECUTION, &refuse) != NULL && !refuse);
    stream_free(stream_find(7));
    stream_free(stream_find(1000));
    CHECK(stream_new(1001, KIND_DIAL, &refuse) != NULL && !refuse);
    CHECK(stream_new(3000, KIND_EXECUTION, &refuse) != NULL && !refuse);
    CHECK(stream_new(3001, KIND_FILE, &refuse) != NULL && refuse);
    clear();
}

static struct stream *with_pipe(int fds[2])
{
    bool refuse;
    struct stream *s = stream_new(1, KIND_EXECUTION, &refuse);

    if (s == NULL || !stream_map(s, 2, WINDOW_BYTES) || pipe2(fds, O_NONBLOCK) < 0)
        abort();
    return s;
}

static void input_by_offset(void)
{
    int fds[2];
    struct stream *s = with_pipe(fds);
    char got[16];

    s->in.fd = fds[1];
    s->in.ready = true;
    CHECK(sink_take(&s->in, 0, (const uint8_t *)"hello", 5));
    CHECK(sink_take(&s->in, 0, (const uint8_t *)"hello", 5));       /* all of it again */
    CHECK(sink_take(&s->in, 3, (const uint8_t *)"lo you", 6));      /* partly */
    CHECK(read(fds[0], got, sizeof got) == 9 && memcmp(got, "hello you", 9) == 0);
    CHECK(!sink_take(&s->in, 10, (const uint8_t *)"x", 1));         /* a gap */
    CHECK(!sink_take(&s->in, UINT64_MAX, (const uint8_t *)"xy", 2));
    s->in.eof = true;
    CHECK(sink_take(&s->in, 8, (const uint8_t *)"u", 1) && !sink_take(&s->in, 9, (const uint8_t *)"x", 1));
    close(fds[0]);
    clear();
}

static void input_within_its_window(void)
{
    int fds[2];
    struct stream *s = with_pipe(fds);
    uint8_t *block = malloc(WINDOW_BYTES);
    char *got = malloc(WINDOW_BYTES);
    uint64_t read_bytes = 0, sent = 0;
    ssize_t n;

    s->in.fd = fds[1];   /* not ready: all is held */
    for (unsigned i = 0; i < WINDOW_BYTES; i++)
        block[i] = (uint8_t)(i * 7 + i / 256);
    CHECK(sink_take(&s->in, 0, block, WINDOW_BYTES));
    CHECK(!sink_take(&s->in, WINDOW_BYTES, block, 1));
    sent = WINDOW_BYTES;
    for (int turn = 0; turn < 60 || read_bytes < sent; turn++) {   /* round and round the ring */
        s->in.ready = true;
        sink_drain(&s->in);
        while ((n = read(fds[0], got, 10007)) > 0)
            for (ssize_t i = 0; i < n; i++, read_bytes++)
                CHECK((uint8_t)got[i] == block[read_bytes % WINDOW_BYTES]);
        size_t free_bytes = WINDOW_BYTES - (size_t)(s->in.received - s->in.consumed);
        size_t at = sent % WINDOW_BYTES, part = free_bytes < WINDOW_BYTES - at ? free_bytes : WINDOW_BYTES - at;
        if (turn < 60) {
            CHECK(sink_take(&s->in, sent, block + at, part));
            sent += part;
        }
    }
    CHECK(s->in.consumed == sent);
    close(fds[0]);
    s->in.ready = true;
    CHECK(sink_take(&s->in, sent, block, 100) && s->in.fd < 0 && s->in.consumed == sent + 100);   /* nobody reads */
    free(block);
    free(got);
    clear();
}

static size_t frames(uint8_t types[16], uint64_t offsets[16])
{
    struct inbuf in = { .data = agent.link.out.data, .start = agent.link.out.start, .end = agent.link.out.end };
    struct frame f;
    size_t count = 0;

    while (count < 16 && inbuf_next(&in, &f) == FRAME_READY) {
        types[count] = f.type;
        offsets[count++] = f.length >= 8 ? get64(f.payload) : 0;
    }
    agent.link.out.start = agent.link.out.end;
    return count;
}

static void output_is_sent_again_from_the_last_acknowledgement(void)
{
    int fds[2];
    struct stream *s = with_pipe(fds);
    uint8_t types[16];
    uint64_t offsets[16];

    agent.link.out.data = malloc(OUTBUF_SIZE);
    agent.link.state = LINK_UP;
    s->out[0].fd = fds[0];
    s->out[0].ready = true;
    s->out[1].eof = true;
    s->session = 5;
    s->phase = PHASE_RUNNING;
    CHECK(write(fds[1], "0123456789", 10) == 10 && source_fill(&s->out[0], 7) && !source_fill(&s->out[0], 7));
    CHECK(s->out[0].empty_at_ms == 7 && !s->out[0].ready);
    stream_emit(s);
    CHECK(frames(types, offsets) == 3 && types[0] == T_STARTED && types[1] == T_DATA && types[2] == T_EOF);
    s->out[0].acked = 4;
    close(fds[1]);
    s->out[0].ready = true;
    CHECK(source_fill(&s->out[0], 8) && s->out[0].eof);
    stream_finish(s, T_EXIT, (const uint8_t *)"", 0);
    stream_emit(s);
    CHECK(frames(types, offsets) == 2 && types[0] == T_EOF && offsets[0] == 10 && types[1] == T_EXIT);
    stream_emit(s);
    CHECK(frames(types, offsets) == 0);
    stream_rewind(s);
    stream_emit(s);
    CHECK(frames(types, offsets) == 5 && types[0] == T_STARTED && types[1] == T_DATA && offsets[1] == 4);
    CHECK(types[2] == T_EOF && types[3] == T_EOF && types[4] == T_EXIT);
    free(agent.link.out.data);
    memset(&agent.link, 0, sizeof agent.link);
    clear();
}

static void output_stops_at_the_window(void)
{
    int fds[2];
    struct stream *s = with_pipe(fds);
    static char block[4096];
    uint64_t total = 0;

    s->out[0].fd = fds[0];
    for (int turn = 0; turn < 200; turn++) {
        while (write(fds[1], block, sizeof block) > 0)
            ;
        s->out[0].ready = true;
        while (source_fill(&s->out[0], 1))
            ;
    }
    total = s->out[0].tail;
    CHECK(total == WINDOW_BYTES && s->out[0].ready && s->out[0].empty_at_ms == 0);
    s->out[0].acked = 100;
    CHECK(source_fill(&s->out[0], 1) && s->out[0].tail == WINDOW_BYTES + 100);
    close(fds[1]);
    clear();
}

void test_streams(void)
{
    RUN(table_is_bounded);
    RUN(connections_and_programs_keep_their_own_places);
    RUN(input_by_offset);
    RUN(input_within_its_window);
    RUN(output_is_sent_again_from_the_last_acknowledgement);
    RUN(output_stops_at_the_window);
}
