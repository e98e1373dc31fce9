/*
 * chain.pml: hits and responses along a chain of three hosts, the removal of the set while it is in
 * use, and a leader in the middle that leaves the job; see docs/design/008-many-hosts.md.
 *
 * Rank 0 coordinates; rank 1 leads the second host, rank 2 the third one, which hears through
 * rank 1.  Each submits a cached operation up to OPS times.  Then the set is removed, as in
 * relay.pml; or rank 1, when it has nothing open, leaves: it says so to its neighbours, hands
 * nothing on any more, and whoever heard through it says the end to those below itself.
 *
 * I1  an operation is done on all ranks that submitted it (and stay), or fails on all of them
 * Every rank ends (no invalid end state).
 */
#define N 3
#define OPS 2

mtype = { CACHED, END, LEFT };

chan up[N] = [4] of { byte };                   /* to this rank: hits of the node below */
chan response[N] = [8] of { mtype };            /* in order, with the farewell of its sender */
chan removal[N] = [1] of { bit };
chan farewell = [1] of { bit };                 /* rank 1 to the coordinator */

byte asked;
byte started[OPS];
byte finished[OPS], failed[OPS];
bool gone[N], left1;

proctype Rank(byte me)
{
    byte op = 0, below = 0, own = 0, x;
    bool open = false, running = false, stops = false, ended = false, said_end = false;
    bool wanted = false, met = false, leaving = false;

    do
    :: atomic { !open && !running && !stops && op < OPS -> open = true; own++ }
    /* Removal, unless somebody leaves. */
    :: atomic { !wanted && !leaving && !left1 -> wanted = true; stops = true; asked++;
        if
        :: asked == N -> removal[0]!1; removal[1]!1; removal[2]!1
        :: else
        fi }
    /* Hits: merged on the way up. */
    :: atomic { me < 2 && up[me]?[x] -> up[me]?x; below++ }
    :: atomic { me == 2 && own > 0 -> own--; up[1]!1 }
    :: atomic { me == 1 && own > 0 && below > 0 -> own--; below--; up[0]!1 }
    :: atomic { me == 0 && own > 0 && below > 0 && !said_end -> own--; below--;
        response[0]!CACHED; response[1]!CACHED }
    /* Responses: handed on first. */
    :: atomic { response[me]?[CACHED] && !running -> response[me]?CACHED;
        assert(open);
        if :: me == 1 -> response[2]!CACHED :: else fi;
        open = false; running = true; started[op]++ }
    :: atomic { response[me]?[END] -> response[me]?END;
        if :: me == 1 -> response[2]!END :: else fi;
        ended = true }
    :: atomic { running && started[op] == N -> running = false; finished[op]++; op++ }
    /* Rank 1 leaves, idle: all it took part in has ended. */
    :: atomic { me == 1 && !open && !running && !wanted && asked == 0 ->
        left1 = true; response[2]!LEFT; farewell!1; gone[1] = true; break }
    :: atomic { me == 2 && response[2]?[LEFT] -> response[2]?LEFT;
        ended = true; stops = true; leaving = true }
    :: atomic { me == 0 && farewell?[1] -> farewell?1;
        said_end = true; ended = true; stops = true; leaving = true }
    /* The removal. */
    :: atomic { removal[me]?[1] && !met -> removal[me]?1; met = true;
        if
        :: me == 0 -> said_end = true; ended = true; response[1]!END
        :: else
        fi }
    :: atomic { (met || leaving) && ended && empty(response[me]) && !running ->
        if
        :: open -> failed[op]++; open = false
        :: else
        fi;
        gone[me] = true; break }
    od
}

/* When all have gone: I1. */
active proctype Judge()
{
    gone[0] && gone[1] && gone[2];
    assert(finished[0] == 0 || failed[0] == 0);
    assert(finished[1] == 0 || failed[1] == 0);
    assert(finished[0] == 0 || finished[0] == N);
    assert(finished[1] == 0 || finished[1] == N)
}

init {
    atomic { run Rank(0); run Rank(1); run Rank(2) }
}
