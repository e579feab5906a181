/* A hash table of numbers that grows, for the worker of a watch. Running out of memory ends the worker. */
#ifndef BELLGLASS_WATCH_TABLE_H
#define BELLGLASS_WATCH_TABLE_H

#include <stddef.h>
#include <stdint.h>

struct slot { uint64_t key; void *value; };   /* value NULL: free */
struct table { struct slot *slots; size_t size, used; };   /* all zero: empty */

void *table_get(const struct table *t, uint64_t key);
void table_put(struct table *t, uint64_t key, void *value);
/* What was there, or NULL. */
void *table_take(struct table *t, uint64_t key);
void table_clear(struct table *t);

#endif
