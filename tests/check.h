/*
 * check.h: C tests.  A test registers itself; each runs in a process of its own with a time
 * limit, so that a crash or a hang of one is a failure of that one only.
 *
 *   TEST(sum_of_two_ranks) { CHECK_EQ(sum(1, 2), 3); }
 *   TEST(slow_one, .limit_s = 60) { ... }
 *
 *   ./test_x              all tests, a line each; exit 1 if one failed
 *   ./test_x name ...     these only;  --list  their names;  --here name  without a fork
 */
#ifndef TESTS_CHECK_H
#define TESTS_CHECK_H

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* True under a sanitizer, whose allocator keeps memory: sizes of it say nothing there. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CHECK_SANITIZED true
#elif defined(__has_feature)
#define CHECK_SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define CHECK_SANITIZED false
#endif

struct check_test {
    const char *name;
    void (*run)(void);
    int limit_s;                        /* 0: 60 s; it ends hangs, not slow tests */
    struct check_test *next;
};

void check_register(struct check_test *test);
_Noreturn void check_fail(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Ends the test as skipped (exit 77); only for what this machine cannot do. */
_Noreturn void check_skip(const char *why);

/* run(0) to run(count - 1) at the same time, in processes of their own: for tests that spend
 * their time waiting.  The test fails if one of them does. */
void check_side_by_side(void (*run)(int number), int count);

/* The limit times CHECK_LIMIT_FACTOR, for sanitizers and slow machines. */
unsigned check_limit_s(int limit_s);

#define TEST(name_, ...)                                                               \
    static void test_##name_(void);                                                    \
    static struct check_test check_##name_ = {                                         \
        .name = #name_, .run = test_##name_, ##__VA_ARGS__};                           \
    __attribute__((constructor)) static void register_##name_(void)                    \
    {                                                                                  \
        check_register(&check_##name_);                                                \
    }                                                                                  \
    static void test_##name_(void)

#define CHECK(condition)                                                               \
    do {                                                                               \
        if (!(condition))                                                              \
            check_fail(__FILE__, __LINE__, "%s", #condition);                          \
    } while (0)

#define CHECK_FORMAT(x)                                                                \
    _Generic((x), double: "%s: %.17g is not %.17g", float: "%s: %.9g is not %.9g",     \
             char *: "%s: '%s' is not '%s'", const char *: "%s: '%s' is not '%s'",     \
             void *: "%s: %p is not %p", const void *: "%s: %p is not %p",             \
             unsigned long: "%s: %lu is not %lu", long: "%s: %ld is not %ld",          \
             unsigned long long: "%s: %llu is not %llu",                               \
             long long: "%s: %lld is not %lld", unsigned: "%s: %u is not %u",          \
             default: "%s: %d is not %d")

/* Both sides once, both printed. */
#define CHECK_EQ(a, b)                                                                 \
    do {                                                                               \
        __typeof__((a) + 0) check_a_ = (a);                                            \
        __typeof__((a) + 0) check_b_ = (b);                                            \
        if (check_a_ != check_b_) {                                                    \
            fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                            \
            fprintf(stderr, CHECK_FORMAT(check_a_), #a " == " #b, check_a_, check_b_); \
            check_fail(__FILE__, __LINE__, "not equal");                               \
        }                                                                              \
    } while (0)

#define CHECK_STR(a, b)                                                                \
    do {                                                                               \
        const char *check_a_ = (a), *check_b_ = (b);                                   \
        if (strcmp(check_a_, check_b_) != 0)                                           \
            check_fail(__FILE__, __LINE__, "%s: '%s' is not '%s'", #a, check_a_,       \
                       check_b_);                                                      \
    } while (0)

#define CHECK_HAS(text, part)                                                          \
    do {                                                                               \
        const char *check_a_ = (text), *check_b_ = (part);                             \
        if (strstr(check_a_, check_b_) == NULL)                                        \
            check_fail(__FILE__, __LINE__, "'%s' does not contain '%s'", check_a_,     \
                       check_b_);                                                      \
    } while (0)

/* call(..., &err) == HVD_OK, with the error's text when it is not. */
#define CHECK_OK(call, err)                                                            \
    do {                                                                               \
        enum hvd_status check_s_ = (call);                                             \
        if (check_s_ != HVD_OK)                                                        \
            check_fail(__FILE__, __LINE__, "%s: %s: %s", #call,                        \
                       hvd_status_name(check_s_), (err).text);                         \
    } while (0)

#endif
