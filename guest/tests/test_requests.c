/* tlv.c, request.c and the vectors of child.c: each refusal beside the twin that passes. */
#include "check.h"

#include <stdlib.h>
#include <string.h>

#include "child.h"

static uint8_t bytes[8192];
static struct tlv_writer w;

static void begin(void) { w = (struct tlv_writer){ .data = bytes, .size = sizeof bytes }; }
static void text(uint16_t tag, const char *value) { tlv_put_string(&w, tag, value); }
static const char *start(struct start_request *r) { return start_decode(r, bytes, w.used); }
static const char *file(struct file_request *r) { return file_decode(r, bytes, w.used); }

static void tlv_cut_off(void)
{
    struct tlv_reader r;
    struct tlv t;

    begin();
    text(1, "abc");
    text(2, "");
    for (size_t length = 0; length <= w.used; length++) {
        int count = 0;
        tlv_open(&r, bytes, length);
        while (tlv_next(&r, &t))
            count++;
        CHECK(r.bad == (length != 0 && length != 9 && length != 15));
        CHECK(count == (length >= 15) + (length >= 9));
    }
    put32(bytes + 2, UINT32_MAX);
    tlv_open(&r, bytes, w.used);
    CHECK(!tlv_next(&r, &t) && r.bad);
}

static void tlv_writer_keeps_within_its_size(void)
{
    uint8_t small[20];
    struct tlv_writer s = { .data = small, .size = sizeof small };

    tlv_put_u64(&s, 1, 1);
    CHECK(s.used == 14 && !s.overflow);
    tlv_put(&s, 2, "", 0);
    CHECK(s.used == 20 && !s.overflow);
    tlv_put(&s, 3, "", 0);
    CHECK(s.used == 20 && s.overflow);
}

static void start_needs_argv_and_good_entries(void)
{
    struct start_request r;

    begin();
    CHECK(start(&r) != NULL);
    text(1, "sh");
    text(2, "A=");
    text(2, "A-B=c=d");
    text(3, "/tmp");
    text(4, "user");
    text(99, "ignored");
    tlv_put_u64(&w, 5, START_STDIN);
    tlv_put_u64(&w, 6, 1000);
    tlv_put_u64(&w, 7, 0777);
    CHECK(start(&r) == NULL && r.argc == 1 && r.envc == 2 && r.cwd.length == 4 && r.flags == START_STDIN);
    size_t good = w.used;
    struct { uint16_t tag; const char *value; } bad[] = {
        { 2, "" }, { 2, "=x" }, { 2, "x" }, { 3, "tmp" }, { 3, "" }, { 4, "" }, { 5, "1" }, { 8, "" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        w.used = good;
        text(bad[i].tag, bad[i].value);
        CHECK(start(&r) != NULL);
    }
    w.used = good;
    tlv_put(&w, 1, "a\0b", 3);
    CHECK(start(&r) != NULL);
    w.used = good;
    tlv_put_u64(&w, 6, 1001);
    CHECK(start(&r) != NULL);
    w.used = good;
    tlv_put_u64(&w, 7, 01000);
    CHECK(start(&r) != NULL);
}

static void terminals_have_both_sizes(void)
{
    struct start_request r;
    uint64_t columns, rows;
    const uint64_t sizes[] = { 0, 1, 80, 65535, 65536, UINT64_MAX };

    for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        bool good = sizes[i] >= 1 && sizes[i] <= 65535;
        begin();
        text(1, "sh");
        CHECK(start(&r) == NULL && r.columns == 0 && r.rows == 0);
        tlv_put_u64(&w, 9, sizes[i]);
        CHECK(start(&r) != NULL);
        tlv_put_u64(&w, 10, 24);
        CHECK((start(&r) == NULL) == good);
        CHECK(!good || (r.columns == sizes[i] && r.rows == 24));
        begin();
        tlv_put_u64(&w, 1, sizes[i]);
        CHECK(resize_decode(&columns, &rows, bytes, w.used) != NULL);
        tlv_put_u64(&w, 2, 24);
        CHECK((resize_decode(&columns, &rows, bytes, w.used) == NULL) == good);
        CHECK(!good || (columns == sizes[i] && rows == 24));
        CHECK(resize_decode(&columns, &rows, bytes, w.used - 1) != NULL);
    }
}

static void vectors_are_terminated(void)
{
    struct start_request r;
    struct vectors v;

    begin();
    text(2, "K=v");
    text(1, "one");
    text(1, "");
    text(8, "id");
    text(1, "three");
    uint8_t *exact = malloc(w.used + 1);   /* one byte more, as the agent promises: the sanitizer watches the next */
    memcpy(exact, bytes, w.used);
    exact[w.used] = 'x';
    CHECK(start_decode(&r, exact, w.used) == NULL && vectors_build(&v, &r, 2));
    CHECK(strcmp(v.argv[0], "one") == 0 && v.argv[1][0] == 0 && strcmp(v.argv[2], "three") == 0 && v.argv[3] == NULL);
    CHECK(strcmp(v.envp[0], "K=v") == 0 && v.envp[1] == NULL && v.envp[3] == NULL);
    free(v.argv);
    free(v.envp);
    free(exact);
}

static void file_needs_operation_and_path(void)
{
    struct file_request r;
    char path[PATH_BYTES_MAX + 2];

    begin();
    CHECK(file(&r) != NULL);
    tlv_put_u64(&w, 1, OP_READ);
    CHECK(file(&r) != NULL);
    size_t bare = w.used;
    text(2, "f");
    CHECK(file(&r) == NULL && r.offset == 0 && r.length == UNLIMITED && r.mode == UNLIMITED);
    tlv_put_u64(&w, 8, (uint64_t)INT64_MAX + 1);
    CHECK(file(&r) != NULL);
    memset(path, 'x', sizeof path);
    for (unsigned over = 0; over < 2; over++) {
        w.used = bare;
        tlv_put(&w, 2, path, PATH_BYTES_MAX + over);
        CHECK(!w.overflow && (file(&r) == NULL) == (over == 0));
    }
    begin();
    tlv_put_u64(&w, 1, OP_MOVE);
    text(2, "a");
    CHECK(file(&r) != NULL);
    text(3, "b");
    CHECK(file(&r) == NULL);
    text(4, "relative");
    CHECK(file(&r) != NULL);
    begin();
    tlv_put_u64(&w, 1, OP_SYNC);
    CHECK(file(&r) == NULL);
    begin();
    tlv_put_u64(&w, 1, OP_WATCH + 1);
    text(2, "a");
    CHECK(file(&r) != NULL);
}

static void cache_limit_is_a_number_and_may_be_left_out(void)
{
    const uint64_t limits[] = { 0, 1, 1u << 31, UINT64_MAX };
    struct file_request r;

    begin();
    tlv_put_u64(&w, 1, OP_READ);
    text(2, "f");
    CHECK(file(&r) == NULL && r.cache_bytes == UNLIMITED);
    size_t bare = w.used;
    for (unsigned i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        w.used = bare;
        tlv_put_u64(&w, 16, limits[i]);
        CHECK(file(&r) == NULL && r.cache_bytes == limits[i]);
    }
    w.used = bare;
    tlv_put(&w, 16, "1234567", 7);
    CHECK(file(&r) != NULL);
}

static void signal_numbers(void)
{
    struct signal_request r;

    for (uint64_t n = 0; n < 70; n++) {
        begin();
        tlv_put_u64(&w, 1, n);
        CHECK((signal_decode(&r, bytes, w.used) == NULL) == (n >= 1 && n <= 64));
    }
    begin();
    tlv_put_u64(&w, 1, 15);
    tlv_put_u64(&w, 2, 2);
    CHECK(signal_decode(&r, bytes, w.used) != NULL);
}

static void dial_ports(void)
{
    const uint64_t ports[] = { 0, 1, 80, 65535, 65536, UINT64_MAX };
    uint16_t port = 0;

    for (unsigned i = 0; i < sizeof ports / sizeof ports[0]; i++) {
        begin();
        tlv_put_u64(&w, 1, ports[i]);
        bool good = ports[i] >= 1 && ports[i] <= 65535;
        CHECK((dial_decode(&port, bytes, w.used) == NULL) == good);
        CHECK(!good || port == ports[i]);
        CHECK(dial_decode(&port, bytes, w.used - 1) != NULL);
    }
    CHECK(dial_decode(&port, bytes, 0) != NULL);
}

void test_requests(void)
{
    RUN(tlv_cut_off);
    RUN(tlv_writer_keeps_within_its_size);
    RUN(start_needs_argv_and_good_entries);
    RUN(terminals_have_both_sizes);
    RUN(vectors_are_terminated);
    RUN(file_needs_operation_and_path);
    RUN(cache_limit_is_a_number_and_may_be_left_out);
    RUN(signal_numbers);
    RUN(dial_ports);
}
