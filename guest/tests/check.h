/* A test is a function that uses CHECK; RUN prints a line for it. The first failed check ends the test. */
#ifndef BELLGLASS_CHECK_H
#define BELLGLASS_CHECK_H

#include <stdio.h>

extern int check_failed, checks_passed, checks_failed;

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            printf("  %s:%d: %s\n", __FILE__, __LINE__, #condition); \
            check_failed = 1; \
            return; \
        } \
    } while (0)

#define RUN(test) \
    do { \
        check_failed = 0; \
        test(); \
        printf("%s %s\n", check_failed ? "FAIL" : "ok  ", #test); \
        if (check_failed) \
            checks_failed++; \
        else \
            checks_passed++; \
    } while (0)

void test_frames(void);
void test_requests(void);
void test_streams(void);
void test_tars(void);
void test_users(void);

#endif
