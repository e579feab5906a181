/* What tar_read.c takes from tar_pax.c. Each answers NULL when good, else what is wrong (static text). */
#ifndef BELLGLASS_TAR_PAX_H
#define BELLGLASS_TAR_PAX_H

#include "tar.h"

/* Copy a name without empty and "." parts; absolute ones and ".." are wrong. */
const char *tar_clean_path(char *to, const char *from, size_t length);
/* A link's target as it stands. */
const char *tar_take_link(char *to, const char *from, size_t length);
/* The records collected in `meta_data`, into `next` and `have`. */
const char *tar_parse_pax(struct tar_reader *t);

#endif
