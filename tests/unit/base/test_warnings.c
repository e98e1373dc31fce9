/* test_warnings.c: the last warnings are kept, in order and in one line each. */
#include "check.h"

#include "base/log.h"
#include "base/warnings.h"

#define LOG_COMPONENT "test"

static struct warning got[WARNINGS_KEPT];

TEST(what_is_logged_is_kept)
{
    log_info("not this");
    log_warn("rank %d is late", 3);
    log_error("two\nlines");
    CHECK_EQ(warnings_read(got), 2);
    CHECK_STR(got[0].text, "rank 3 is late");
    CHECK_EQ(got[0].level, LOG_WARN);
    CHECK_STR(got[1].text, "two lines");
    CHECK_EQ(got[1].level, LOG_ERROR);
    CHECK(got[0].wall_us > 0 && got[0].wall_us <= got[1].wall_us);
}

TEST(the_newest_are_kept_and_long_ones_cut)
{
    char text[WARNING_TEXT * 2];

    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    for (int i = 0; i < WARNINGS_KEPT + 3; i++) {
        text[0] = (char)('a' + i);
        warnings_note(LOG_WARN, text);
    }
    CHECK_EQ(warnings_read(got), WARNINGS_KEPT);
    CHECK_EQ(got[0].text[0], 'd');
    CHECK_EQ(strlen(got[0].text), WARNING_TEXT - 1u);
    CHECK_EQ(got[WARNINGS_KEPT - 1].text[0], 'a' + WARNINGS_KEPT + 2);
}
