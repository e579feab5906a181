/* See request.h. */
#include "request.h"

#include <string.h>

static bool take_text(struct text *to, const struct tlv *t, size_t max)
{
    if (t->length == 0 || !tlv_string(t, max))
        return false;
    to->data = t->value;
    to->length = t->length;
    return true;
}

static bool take_u64(uint64_t *to, const struct tlv *t, uint64_t max) { return tlv_u64(t, to) && *to <= max; }

/* Of a terminal, as the kernel holds it: an unsigned short. */
static bool take_size(uint64_t *to, const struct tlv *t) { return take_u64(to, t, UINT16_MAX) && *to > 0; }

static bool env_entry_ok(const struct tlv *t)
{
    if (!tlv_string(t, START_MAX))
        return false;
    const uint8_t *equals = t->length ? memchr(t->value, '=', t->length) : NULL;
    return equals != NULL && equals != t->value;
}

const char *start_decode(struct start_request *r, const uint8_t *payload, size_t length)
{
    struct tlv_reader reader;
    struct tlv t;

    *r = (struct start_request){ .payload = payload, .length = length, .umask = 022 };
    tlv_open(&reader, payload, length);
    while (tlv_next(&reader, &t)) {
        switch (t.tag) {
        case 1:
            if (!tlv_string(&t, START_MAX) || (r->argc == 0 && t.length == 0))
                return "bad argv";
            r->argc++;
            break;
        case 2:
            if (!env_entry_ok(&t))
                return "bad environment entry";
            r->envc++;
            break;
        case 3:
            if (!take_text(&r->cwd, &t, PATH_BYTES_MAX) || t.value[0] != '/')
                return "bad working directory";
            break;
        case 4:
            if (!take_text(&r->user, &t, USER_BYTES_MAX))
                return "bad user";
            break;
        case 5:
            if (!tlv_u64(&t, &r->flags))
                return "bad flags";
            break;
        case 6:
            if (!tlv_u64(&t, &r->oom_score_adj) || r->oom_score_adj > 1000)
                return "bad oom_score_adj";
            break;
        case 7:
            if (!tlv_u64(&t, &r->umask) || r->umask > 0777)
                return "bad umask";
            break;
        case 8:
            if (!take_text(&r->execution, &t, 64))
                return "bad execution id";
            break;
        case 9:
        case 10:
            if (!take_size(t.tag == 9 ? &r->columns : &r->rows, &t))
                return "bad terminal size";
            break;
        default:
            break;
        }
    }
    if (reader.bad)
        return "bad TLV";
    if (r->argc == 0)
        return "no argv";
    if ((r->columns == 0) != (r->rows == 0))
        return "half a terminal size";
    return NULL;
}

/* `name NUL value`. */
static bool attribute_ok(const struct tlv *t)
{
    const uint8_t *end = t->length ? memchr(t->value, 0, t->length) : NULL;

    return end != NULL && end != t->value && (size_t)(end - t->value) <= ATTRIBUTE_NAME_MAX;
}

/* One element of FILE; NULL when good. */
static const char *file_element(struct file_request *r, const struct tlv *t)
{
    const uint64_t offset_max = INT64_MAX;

    switch (t->tag) {
    case 1: return take_u64(&r->operation, t, OP_WATCH) ? NULL : "bad operation";
    case 2: return t->length == 0 || take_text(&r->path, t, PATH_BYTES_MAX) ? NULL : "bad path";
    case 3: return take_text(&r->path2, t, PATH_BYTES_MAX) ? NULL : "bad second path";
    case 4: return take_text(&r->base, t, PATH_BYTES_MAX) && t->value[0] == '/' ? NULL : "bad base folder";
    case 5: return take_text(&r->user, t, USER_BYTES_MAX) ? NULL : "bad user";
    case 6: return take_u64(&r->flags, t, UINT64_MAX) ? NULL : "bad flags";
    case 7: return take_u64(&r->mode, t, 07777) ? NULL : "bad mode";
    case 8: return take_u64(&r->offset, t, offset_max) ? NULL : "bad offset";
    case 9: return take_u64(&r->length, t, offset_max) ? NULL : "bad length";
    case 10: return take_u64(&r->max_bytes, t, UINT64_MAX) ? NULL : "bad byte limit";
    case 11: return take_u64(&r->max_entries, t, UINT64_MAX) ? NULL : "bad entry limit";
    case 12: return take_u64(&r->expected, t, UINT64_MAX) ? NULL : "bad expected size";
    case 13: return attribute_ok(t) ? NULL : "bad attribute";
    case 14: return take_text(&r->owner, t, USER_BYTES_MAX) ? NULL : "bad owner";
    case 15: return take_u64(&r->depth, t, UINT64_MAX) && r->depth > 0 ? NULL : "bad depth";
    case 16: return take_u64(&r->cache_bytes, t, UINT64_MAX) ? NULL : "bad cache limit";
    default: return NULL;
    }
}

const char *file_decode(struct file_request *r, const uint8_t *payload, size_t length)
{
    struct tlv_reader reader;
    struct tlv t;

    *r = (struct file_request){
        .payload = payload, .payload_length = length, .mode = UNLIMITED, .length = UNLIMITED,
        .max_bytes = UNLIMITED, .max_entries = UNLIMITED, .expected = UNLIMITED, .depth = UNLIMITED,
        .cache_bytes = UNLIMITED,
    };
    tlv_open(&reader, payload, length);
    while (tlv_next(&reader, &t)) {
        const char *wrong = file_element(r, &t);
        if (wrong != NULL)
            return wrong;
    }
    if (reader.bad)
        return "bad TLV";
    if (r->operation == 0)
        return "no operation";
    if (r->path.data == NULL && r->operation != OP_SYNC)
        return "no path";
    if (r->path2.data == NULL && r->operation == OP_MOVE)
        return "no second path";
    return NULL;
}

const char *dial_decode(uint16_t *port, const uint8_t *payload, size_t length)
{
    struct tlv_reader reader;
    struct tlv t;
    uint64_t number = 0;

    tlv_open(&reader, payload, length);
    while (tlv_next(&reader, &t))
        if (t.tag == 1 && !take_u64(&number, &t, UINT16_MAX))
            return "bad port";
    if (reader.bad || number == 0)
        return "no port";
    *port = (uint16_t)number;
    return NULL;
}

const char *resize_decode(uint64_t *columns, uint64_t *rows, const uint8_t *payload, size_t length)
{
    struct tlv_reader reader;
    struct tlv t;

    *columns = *rows = 0;
    tlv_open(&reader, payload, length);
    while (tlv_next(&reader, &t))
        if ((t.tag == 1 || t.tag == 2) && !take_size(t.tag == 1 ? columns : rows, &t))
            return "bad terminal size";
    return reader.bad || *columns == 0 || *rows == 0 ? "bad terminal size" : NULL;
}

const char *signal_decode(struct signal_request *r, const uint8_t *payload, size_t length)
{
    struct tlv_reader reader;
    struct tlv t;

    *r = (struct signal_request){ 0 };
    tlv_open(&reader, payload, length);
    while (tlv_next(&reader, &t)) {
        if (t.tag == 1 && !take_u64(&r->number, &t, 64))
            return "bad signal number";
        if (t.tag == 2 && !take_u64(&r->scope, &t, 1))
            return "bad scope";
    }
    if (reader.bad || r->number == 0)
        return "bad signal";
    return NULL;
}
