/* Runs all unit tests. The parts of the agent that need a loop or a socket are replaced here. */
#include "check.h"

#include <signal.h>

#include "agent.h"

int check_failed, checks_passed, checks_failed;
struct agent agent;

int64_t now_ms(void) { return 1; }
bool watch(int fd, uint32_t events, const struct stream *s, enum watch_what what)
{
    (void)fd, (void)events, (void)s, (void)what;
    return true;
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);   /* as the agent does */
    setvbuf(stdout, NULL, _IOLBF, 0);
    test_frames();
    test_requests();
    test_streams();
    test_tars();
    test_users();
    printf("%d passed, %d failed\n", checks_passed, checks_failed);
    return checks_failed != 0;
}
