/* The archive reader, fed in arbitrary cuts: whatever comes in, names are clean, slices lie inside of the input and sum
 * up to the stated sizes. Entries go through the writer and back, and must come out the same. First byte: cut length.
 */
#include <stdlib.h>
#include <string.h>

#include "tar.h"

static struct tar_reader reader, again;

static void check_path(const char *path)
{
    if (path[0] == '/' || strstr(path, "//") != NULL || strcmp(path, "..") == 0 || strncmp(path, "../", 3) == 0
        || strstr(path, "/../") != NULL || strlen(path) > TAR_PATH_MAX)
        abort();
    size_t length = strlen(path);
    if (length >= 3 && strcmp(path + length - 3, "/..") == 0)
        abort();
}

static void round_trip(const struct tar_entry *e)
{
    static uint8_t bytes[TAR_HEADER_MAX];
    struct tar_member m = { .path = e->path, .link = e->type == TAR_SYMLINK ? e->link : NULL, .type = e->type,
        .mode = e->mode, .uid = (uint32_t)e->size, .gid = 7, .size = e->size, .mtime_s = e->mtime_s };
    const uint8_t *data = bytes, *slice;
    size_t slice_length, length;

    if (e->type == TAR_HARDLINK || e->path[0] == 0)
        return;
    length = tar_header(bytes, &m);
    if (length > sizeof bytes || length % TAR_BLOCK != 0)
        abort();
    tar_reader_init(&again);
    if (tar_next(&again, &data, &length, &slice, &slice_length) != TAR_ENTRY || length != 0)
        abort();
    if (strcmp(again.entry.path, e->path) != 0 || again.entry.type != e->type || again.entry.size != e->size
        || again.entry.mode != e->mode || (e->type == TAR_SYMLINK && strcmp(again.entry.link, e->link) != 0))
        abort();
}

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);

/* Mutate, then make the checksums right again: the reader refuses a header without, and would hide all behind it. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    size = LLVMFuzzerMutate(data, size, max_size);
    for (size_t at = 1; seed % 8 != 0 && at + TAR_BLOCK <= size; at += TAR_BLOCK) {
        uint8_t *block = data + at;
        unsigned sum = 0;
        if (memcmp(block + 257, "ustar", 5) != 0)
            continue;
        memset(block + 148, ' ', 8);
        for (unsigned i = 0; i < TAR_BLOCK; i++)
            sum += block[i];
        for (unsigned i = 0; i < 6; i++, sum >>= 3)
            block[153 - i] = (uint8_t)('0' + (sum & 7));
        block[154] = 0;
    }
    return size;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t left = 0;

    if (size == 0)
        return 0;
    size_t step = data[0] ? (size_t)data[0] * 5 : size;
    data++, size--;
    tar_reader_init(&reader);
    while (size > 0) {
        const uint8_t *slice = NULL, *part = data;
        size_t slice_length = 0, length = size < step ? size : step;
        const uint8_t *end = data + length;
        enum tar_event event;
        data += length, size -= length;
        while ((event = tar_next(&reader, &part, &length, &slice, &slice_length)) != TAR_MORE) {
            if (event == TAR_BAD) {
                if (reader.error == NULL)
                    abort();
                return 0;
            }
            if (part + length != end)
                abort();
            if (event == TAR_ENTRY) {
                if (left != 0)
                    abort();
                left = reader.entry.size;
                check_path(reader.entry.path);
                if (reader.entry.type == TAR_HARDLINK)
                    check_path(reader.entry.link);
                round_trip(&reader.entry);
            }
            if (event == TAR_DATA) {
                if (slice_length == 0 || slice_length > left || slice + slice_length > end)
                    abort();
                left -= slice_length;
            }
        }
        if (length != 0)
            abort();
    }
    if (tar_complete(&reader) && left != 0)
        abort();
    return 0;
}
