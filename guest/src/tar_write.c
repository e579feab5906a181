/* The writing half of tar.h: a ustar header, with a pax header before it for what ustar cannot say. */
#include "tar.h"

#include <string.h>

static void octal(uint8_t *field, size_t size, uint64_t value)
{
    field[--size] = 0;
    while (size > 0) {
        field[--size] = (uint8_t)('0' + (value & 7));
        value >>= 3;
    }
}

static void seal(uint8_t *block)
{
    uint32_t sum = 0;

    memcpy(block + 257, "ustar\00000", 8);
    memset(block + 148, ' ', 8);
    for (unsigned i = 0; i < TAR_BLOCK; i++)
        sum += block[i];
    octal(block + 148, 7, sum);
}

static size_t decimal(char *text, uint64_t value)
{
    char digits[20];
    size_t count = 0;

    do {
        digits[count++] = (char)('0' + value % 10);
        value /= 10;
    } while (value > 0);
    for (size_t i = 0; i < count; i++)
        text[i] = digits[count - 1 - i];
    return count;
}

/* "LENGTH key=value\n", where LENGTH counts itself. */
static size_t pax_put(char *out, const char *key, const char *value, size_t length)
{
    size_t body = 1 + strlen(key) + 1 + length + 1, digits = 1;
    char text[20];

    while (decimal(text, body + digits) != digits)
        digits++;
    size_t at = decimal(out, body + digits);
    out[at++] = ' ';
    memcpy(out + at, key, strlen(key));
    at += strlen(key);
    out[at++] = '=';
    memcpy(out + at, value, length);
    at += length;
    out[at++] = '\n';
    return at;
}

static size_t pax_put_number(char *out, const char *key, uint64_t value)
{
    char text[20];

    return pax_put(out, key, text, decimal(text, value));
}

static void block_name(uint8_t *field, size_t size, const char *text, size_t length)
{
    memcpy(field, text, length < size ? length : size);
}

size_t tar_header(uint8_t *out, const struct tar_member *m)
{
    char pax[TAR_HEADER_MAX], path[TAR_PATH_MAX + 2];
    size_t used = 0, path_length = strnlen(m->path, TAR_PATH_MAX);
    size_t link_length = m->link == NULL ? 0 : strnlen(m->link, TAR_PATH_MAX);
    uint8_t *block = out;

    memcpy(path, m->path, path_length);
    if (m->type == TAR_FOLDER)
        path[path_length++] = '/';
    if (path_length > 100)
        used += pax_put(pax + used, "path", path, path_length);
    if (link_length > 100)
        used += pax_put(pax + used, "linkpath", m->link, link_length);
    if (m->size >> 33)
        used += pax_put_number(pax + used, "size", m->size);
    if (m->uid >> 21)
        used += pax_put_number(pax + used, "uid", m->uid);
    if (m->gid >> 21)
        used += pax_put_number(pax + used, "gid", m->gid);
    if (used > 0) {
        size_t padded = (used + TAR_BLOCK - 1) / TAR_BLOCK * TAR_BLOCK;
        memset(block, 0, TAR_BLOCK + padded);
        block_name(block, 100, "pax", 3);
        octal(block + 100, 8, 0644);
        octal(block + 108, 8, 0);
        octal(block + 116, 8, 0);
        octal(block + 124, 12, used);
        octal(block + 136, 12, 0);
        block[156] = 'x';
        seal(block);
        memcpy(block + TAR_BLOCK, pax, used);
        block += TAR_BLOCK + padded;
    }
    memset(block, 0, TAR_BLOCK);
    block_name(block, 100, path, path_length);
    octal(block + 100, 8, m->mode & 07777);
    octal(block + 108, 8, m->uid >> 21 ? 0 : m->uid);
    octal(block + 116, 8, m->gid >> 21 ? 0 : m->gid);
    octal(block + 124, 12, m->size >> 33 ? 0 : m->size);
    octal(block + 136, 12, m->mtime_s < 0 || m->mtime_s >> 33 ? 0 : (uint64_t)m->mtime_s);
    block[156] = m->type == TAR_FOLDER ? '5' : m->type == TAR_SYMLINK ? '2' : '0';
    if (link_length > 0)
        block_name(block + 157, 100, m->link, link_length);
    seal(block);
    return (size_t)(block - out) + TAR_BLOCK;
}
