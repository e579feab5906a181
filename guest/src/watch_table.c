/* See watch_table.h: open addressing with linear probing; what follows a gap is moved up, so there are no tombstones. */
#include "watch_table.h"

#include <errno.h>
#include <stdlib.h>

#include "worker.h"

#define SMALLEST 64u

static size_t home_of(const struct table *t, uint64_t key)
{
    return (size_t)((key * 0x9E3779B97F4A7C15u) >> 32) & (t->size - 1);
}

static struct slot *find(const struct table *t, uint64_t key)
{
    size_t at = home_of(t, key);

    while (t->slots[at].value != NULL && t->slots[at].key != key)
        at = (at + 1) & (t->size - 1);
    return &t->slots[at];
}

void *table_get(const struct table *t, uint64_t key) { return t->used == 0 ? NULL : find(t, key)->value; }

static void grow(struct table *t)
{
    struct table larger = { .size = t->size == 0 ? SMALLEST : t->size * 2, .used = t->used };

    larger.slots = calloc(larger.size, sizeof *larger.slots);
    if (larger.slots == NULL)
        worker_fail("limit", 0, "no memory for a watch of so many folders");
    for (size_t i = 0; i < t->size; i++)
        if (t->slots[i].value != NULL)
            *find(&larger, t->slots[i].key) = t->slots[i];
    free(t->slots);
    *t = larger;
}

void table_put(struct table *t, uint64_t key, void *value)
{
    if ((t->used + 1) * 4 > t->size * 3)
        grow(t);
    struct slot *slot = find(t, key);
    t->used += slot->value == NULL;
    *slot = (struct slot){ key, value };
}

void *table_take(struct table *t, uint64_t key)
{
    if (t->used == 0)
        return NULL;
    struct slot *slot = find(t, key);
    void *value = slot->value;
    if (value == NULL)
        return NULL;
    size_t gap = (size_t)(slot - t->slots), mask = t->size - 1;
    for (size_t at = (gap + 1) & mask; t->slots[at].value != NULL; at = (at + 1) & mask) {
        size_t distance = (at - home_of(t, t->slots[at].key)) & mask;
        if (distance < ((at - gap) & mask))
            continue;   /* it is at home behind the gap */
        t->slots[gap] = t->slots[at];
        gap = at;
    }
    t->slots[gap].value = NULL;
    t->used--;
    return value;
}

void table_clear(struct table *t)
{
    free(t->slots);
    *t = (struct table){ 0 };
}
