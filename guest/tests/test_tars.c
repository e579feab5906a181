/* tar_read.c and tar_write.c: what is written is read back, in any cut; names that would get out are refused. */
#include "check.h"

#include <stdlib.h>
#include <string.h>

#include "tar.h"

static struct tar_reader reader;

static void write_then_read(void)
{
    static uint8_t bytes[64 * 1024];
    char *deep = malloc(TAR_PATH_MAX + 1);
    memset(deep, 'd', TAR_PATH_MAX);
    deep[TAR_PATH_MAX] = 0;
    for (unsigned i = 200; i < TAR_PATH_MAX - 1; i += 200)
        deep[i] = '/';
    struct tar_member members[] = {
        { .path = "a", .type = TAR_FILE, .mode = 0644, .size = 3, .mtime_s = 12345 },
        { .path = "folder/b", .type = TAR_FOLDER, .mode = 0755, .uid = 3000000, .gid = 5 },
        { .path = deep, .type = TAR_SYMLINK, .link = deep, .mode = 0777 },
        { .path = "last", .type = TAR_FILE, .mode = 04711, .size = 0 },
    };
    for (size_t step = 1; step < 2000; step = step * 3 + 1) {
        size_t used = 0, member = 0, data_bytes = 0;
        for (size_t i = 0; i < 4; i++) {
            used += tar_header(bytes + used, &members[i]);
            if (members[i].size > 0) {
                memset(bytes + used, 0, TAR_BLOCK);
                memcpy(bytes + used, "xyz", 3);
                used += TAR_BLOCK;
            }
        }
        memset(bytes + used, 0, 2 * TAR_BLOCK);
        used += 2 * TAR_BLOCK;
        tar_reader_init(&reader);
        for (size_t at = 0; at < used;) {
            const uint8_t *data = bytes + at, *slice;
            size_t length = used - at < step ? used - at : step, slice_length;
            enum tar_event event;
            CHECK(!tar_complete(&reader) || used - at <= TAR_BLOCK);
            at += length;
            while ((event = tar_next(&reader, &data, &length, &slice, &slice_length)) != TAR_MORE) {
                CHECK(event != TAR_BAD);
                if (event == TAR_DATA)
                    data_bytes += slice_length;
                if (event != TAR_ENTRY)
                    continue;
                CHECK(strcmp(reader.entry.path, members[member].path) == 0);
                CHECK(reader.entry.type == members[member].type && reader.entry.mode == members[member].mode);
                CHECK(reader.entry.size == members[member].size);
                member++;
            }
        }
        CHECK(member == 4 && data_bytes == 3 && tar_complete(&reader));
    }
    free(deep);
}

static enum tar_event first_event(const char *path)
{
    static uint8_t bytes[TAR_HEADER_MAX];
    struct tar_member m = { .path = path, .type = TAR_FILE };
    const uint8_t *data = bytes, *slice;
    size_t length = tar_header(bytes, &m), slice_length;

    tar_reader_init(&reader);
    return tar_next(&reader, &data, &length, &slice, &slice_length);
}

static void names(void)
{
    const char *good[] = { "a", "./a", "a//b", "a/./b", "..a", "a..", "a/...", ".hidden" };
    const char *bad[] = { "/a", "..", "../a", "a/..", "a/../b", "./..", "", "." };

    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        CHECK(first_event(good[i]) == TAR_ENTRY);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK(first_event(bad[i]) == TAR_BAD && reader.error != NULL);
    CHECK(first_event("./") == TAR_ENTRY && reader.entry.type == TAR_FOLDER && reader.entry.path[0] == 0);
    CHECK(first_event("a//./b") == TAR_ENTRY && strcmp(reader.entry.path, "a/b") == 0);
}

static void one_changed_byte_is_noticed(void)
{
    uint8_t bytes[TAR_BLOCK];
    struct tar_member m = { .path = "name", .type = TAR_FILE, .size = 8 };

    for (unsigned i = 0; i < TAR_BLOCK; i++) {
        const uint8_t *data = bytes, *slice;
        size_t length = TAR_BLOCK, slice_length;
        CHECK(tar_header(bytes, &m) == TAR_BLOCK);
        if (i < 148 || i >= 156)
            bytes[i] ^= 1;
        tar_reader_init(&reader);
        CHECK(tar_next(&reader, &data, &length, &slice, &slice_length) == (i < 148 || i >= 156 ? TAR_BAD : TAR_ENTRY));
    }
}

static void file_whose_cut_name_ends_in_a_slash(void)
{
    char path[200];

    memset(path, 'p', sizeof path);
    path[99] = '/';
    path[199] = 0;
    CHECK(first_event(path) == TAR_ENTRY && reader.entry.type == TAR_FILE && strcmp(reader.entry.path, path) == 0);
}

void test_tars(void)
{
    RUN(write_then_read);
    RUN(names);
    RUN(one_changed_byte_is_noticed);
    RUN(file_whose_cut_name_ends_in_a_slash);
}
