/* The reading half of tar.h. Every number is the archive's word, so it is bounded before it is used. */
#include "tar_pax.h"

#include <string.h>

static const char *parse_number(const uint8_t *field, size_t size, uint64_t *value)
{
    uint64_t sum = 0;
    size_t i = 0;

    if (field[0] & 0x80) {   /* base 256, big-endian; 0xff begins a negative one */
        if (field[0] != 0x80)
            return "a number is negative or too large";
        for (i = 1; i < size; i++) {
            if (sum >> 55)
                return "a number is too large";
            sum = sum << 8 | field[i];
        }
        *value = sum;
        return NULL;
    }
    while (i < size && field[i] == ' ')
        i++;
    for (; i < size && field[i] >= '0' && field[i] <= '7'; i++) {
        if (sum >> 60)
            return "a number is too large";
        sum = sum << 3 | (uint64_t)(field[i] - '0');
    }
    if (i < size && field[i] != ' ' && field[i] != 0)
        return "a number is not octal";
    *value = sum;
    return NULL;
}

/* What a finished pax or GNU header says of the entry that follows it. */
static const char *take_meta(struct tar_reader *t)
{
    size_t length = t->meta_length;
    char meta = t->meta;

    t->meta = 0;
    if (meta == 'x')
        return tar_parse_pax(t);
    while (length > 0 && t->meta_data[length - 1] == 0)
        length--;
    if (meta == 'L') {
        t->have.path = true;
        return tar_clean_path(t->next.path, (const char *)t->meta_data, length);
    }
    t->have.link = true;
    return tar_take_link(t->next.link, (const char *)t->meta_data, length);
}

static bool checksum_good(const uint8_t *block)
{
    uint64_t stated;
    uint32_t sum = 0;
    int32_t as_signed = 0;

    if (parse_number(block + 148, 8, &stated) != NULL)
        return false;
    for (unsigned i = 0; i < TAR_BLOCK; i++) {
        uint8_t byte = i >= 148 && i < 156 ? ' ' : block[i];
        sum += byte;
        as_signed += (int8_t)byte;
    }
    return stated == sum || (as_signed >= 0 && stated == (uint64_t)as_signed);
}

static const char *header_path(struct tar_reader *t)
{
    const char *name = (const char *)t->block, *prefix = name + 345;
    char joined[160 + 100];
    size_t length = 0, part = strnlen(name, 100);

    /* GNU's own magic is "ustar  ", and its prefix field means something else */
    if (memcmp(t->block + 257, "ustar\0", 6) == 0 && prefix[0] != 0) {
        length = strnlen(prefix, 155);
        memcpy(joined, prefix, length);
        joined[length++] = '/';
    }
    memcpy(joined + length, name, part);
    return tar_clean_path(t->entry.path, joined, length + part);
}

static const char *entry_type(struct tar_reader *t, uint8_t letter, bool slash)
{
    switch (letter) {
    case 0: case '0': case '7': t->entry.type = slash ? TAR_FOLDER : TAR_FILE; return NULL;
    case '1': t->entry.type = TAR_HARDLINK; return NULL;
    case '2': t->entry.type = TAR_SYMLINK; return NULL;
    case '5': t->entry.type = TAR_FOLDER; return NULL;
    case '3': case '4': return "a device";
    case '6': return "a FIFO";
    default: return "an entry of an unsupported type";
    }
}

static const char *fill_entry(struct tar_reader *t)
{
    struct tar_entry *e = &t->entry;
    const char *wrong, *name = (const char *)t->block;
    size_t length = strnlen(name, 100);
    uint64_t value;

    /* before ustar a folder was a file whose name ends in "/"; a name cut off for a pax header may end like that too */
    wrong = entry_type(t, t->block[156], !t->have.path && length > 0 && name[length - 1] == '/');
    if (wrong == NULL)
        wrong = t->have.path ? (memcpy(e->path, t->next.path, sizeof e->path), NULL) : header_path(t);
    if (wrong == NULL)
        wrong = parse_number(t->block + 100, 8, &value);
    if (wrong != NULL)
        return wrong;
    e->mode = (uint32_t)value & 07777;
    wrong = parse_number(t->block + 124, 12, &e->size);
    if (t->have.size)
        e->size = t->next.size;
    else if (wrong != NULL)
        return wrong;
    if (e->size > (uint64_t)INT64_MAX - TAR_BLOCK)
        return "a number is too large";
    if (e->type != TAR_FILE)
        e->size = 0;
    e->mtime_ns = 0;
    e->mtime_s = parse_number(t->block + 136, 12, &value) == NULL ? (int64_t)(value & INT64_MAX) : 0;
    if (t->have.mtime) {
        e->mtime_s = t->next.mtime_s;
        e->mtime_ns = t->next.mtime_ns;
    }
    e->link[0] = 0;
    if (e->type == TAR_SYMLINK || e->type == TAR_HARDLINK) {
        const char *link = t->have.link ? t->next.link : name + 157;
        wrong = tar_take_link(e->link, link, t->have.link ? strlen(link) : strnlen(link, 100));
        if (wrong == NULL && e->type == TAR_HARDLINK) {
            memcpy(t->next.link, e->link, sizeof e->link);
            wrong = tar_clean_path(e->link, t->next.link, strlen(t->next.link));
        }
    }
    if (wrong == NULL && e->path[0] == 0 && e->type != TAR_FOLDER)
        wrong = "a name is empty";
    memset(&t->have, 0, sizeof t->have);
    return wrong;
}

/* A whole header block is there. */
static enum tar_event on_block(struct tar_reader *t)
{
    bool zero = true;

    for (unsigned i = 0; i < TAR_BLOCK && zero; i++)
        zero = t->block[i] == 0;
    if (zero) {
        t->ended = t->zero_seen;
        t->zero_seen = true;
        return t->ended ? TAR_END : TAR_MORE;
    }
    t->zero_seen = false;
    if (!checksum_good(t->block)) {
        t->error = "a header's checksum is wrong";
        return TAR_BAD;
    }
    uint8_t letter = t->block[156];
    if (letter == 'x' || letter == 'g' || letter == 'L' || letter == 'K') {
        t->error = parse_number(t->block + 124, 12, &t->left);
        if (t->error == NULL && t->left > TAR_META_MAX)
            t->error = "an extended header is too long";
        if (t->error != NULL)
            return TAR_BAD;
        t->padding = (TAR_BLOCK - t->left % TAR_BLOCK) % TAR_BLOCK;
        t->meta = (char)letter;
        t->meta_length = 0;
        return TAR_MORE;
    }
    t->error = fill_entry(t);
    if (t->error != NULL)
        return TAR_BAD;
    t->left = t->entry.size;
    t->padding = (TAR_BLOCK - t->left % TAR_BLOCK) % TAR_BLOCK;
    return TAR_ENTRY;
}

void tar_reader_init(struct tar_reader *t) { memset(t, 0, sizeof *t); }

bool tar_complete(const struct tar_reader *t)
{
    return t->ended || (t->zero_seen && t->held == 0);
}

static size_t take(const uint8_t **data, size_t *length, uint64_t most)
{
    size_t part = *length < most ? *length : (size_t)most;

    *data += part;
    *length -= part;
    return part;
}

enum tar_event tar_next(struct tar_reader *t, const uint8_t **data, size_t *length,
                        const uint8_t **slice, size_t *slice_length)
{
    while (t->error == NULL && (*length > 0 || (t->meta != 0 && t->left == 0 && t->padding == 0))) {
        if (t->ended) {
            t->trailer += take(data, length, *length);
            if (t->trailer > TAR_TRAILER_MAX)
                t->error = "too many bytes behind the end";
        } else if (t->left > 0 && t->meta == 0) {
            *slice = *data;
            *slice_length = take(data, length, t->left);
            t->left -= *slice_length;
            return TAR_DATA;
        } else if (t->left > 0) {
            const uint8_t *from = *data;
            size_t part = take(data, length, t->left);
            memcpy(t->meta_data + t->meta_length, from, part);
            t->meta_length += part;
            t->left -= part;
        } else if (t->padding > 0) {
            t->padding -= take(data, length, t->padding);
        } else if (t->meta != 0) {
            if (t->meta == 'g')
                t->meta = 0;   /* comments and defaults that no file of ours needs */
            else
                t->error = take_meta(t);
        } else {
            const uint8_t *from = *data;
            size_t part = take(data, length, TAR_BLOCK - t->held);
            memcpy(t->block + t->held, from, part);
            t->held += part;
            if (t->held == TAR_BLOCK) {
                t->held = 0;
                enum tar_event event = on_block(t);
                if (event != TAR_MORE)
                    return event;
            }
        }
    }
    return t->error == NULL ? TAR_MORE : TAR_BAD;
}
