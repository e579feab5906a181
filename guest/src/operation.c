/* file operations: to come in the next commit */
#include "agent.h"
void operation_start(struct stream *s, const uint8_t *payload, size_t length) { (void)payload; (void)length; stream_fail(s, "protocol", 0, "not supported"); }
bool operation_pump(struct stream *s, int64_t now) { (void)s; (void)now; return false; }
void operation_reaped(struct stream *s, int status) { (void)status; s->pid = 0; }
void operation_abort(struct stream *s, int64_t now) { (void)s; (void)now; }
void operation_commit(struct stream *s) { (void)s; }
