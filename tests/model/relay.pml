/*
 * relay.pml: hits and responses through a leader, and the removal of the set while it is in
 * use; see docs/design/003-relay.md.
 *
 * Rank 0 coordinates; rank 1 leads a second host, on which rank 2 is its mate.  Each rank
 * submits a cached operation up to OPS times, or stops early, and then asks for the removal,
 * whose order comes to each rank by a way of its own (the global set's).  A batch runs when all
 * have started it.
 *
 * I1  an operation is done on all ranks that submitted it, or fails on all
 * I2  a rank that has removed the set is needed by nobody
 * Every rank ends (no invalid end state).
 */
#define N 3
#define OPS 2

mtype = { CACHED, END };

chan to_leader = [4] of { byte };               /* hits of rank 2 */
chan to_coordinator = [4] of { byte };          /* 0: of itself, 1: the host's of rank 1 */
chan response[N] = [8] of { mtype };
chan removal[N] = [1] of { bit };

byte asked;                     /* ranks that want the set removed */
byte started[OPS];              /* ranks that have started the batch of this operation */
byte finished[OPS], failed[OPS];
bool gone[N];

proctype Rank(byte me)
{
    byte op = 0, hits0 = 0, hits1 = 0, of_mate = 0, own = 0, x;
    bool open = false, running = false, stops = false, ended = false, said_end = false;
    bool wanted = false, met = false;

    do
    /* Submits; or decides that this was all. */
    :: atomic { !open && !running && !stops && op < OPS ->
        open = true;
        if
        :: me == 0 -> hits0++
        :: me == 1 -> own++
        :: me == 2 -> to_leader!op
        fi }
    /* Removes with an operation under way, or without. */
    :: atomic { !wanted -> wanted = true; stops = true; asked++;
        if
        :: asked == N -> removal[0]!1; removal[1]!1; removal[2]!1
        :: else
        fi }
    /* The leader relays. */
    :: atomic { me == 1 && to_leader?[x] -> to_leader?x; of_mate++ }
    :: atomic { me == 1 && of_mate > 0 && own > 0 ->
        of_mate--; own--; to_coordinator!1 }
    /* The coordinator answers. */
    :: atomic { me == 0 && to_coordinator?[x] -> to_coordinator?x; hits1++ }
    :: atomic { me == 0 && hits0 > 0 && hits1 > 0 && !said_end ->
        hits0--; hits1--; response[0]!CACHED; response[1]!CACHED }
    /* Responses, in order; the leader hands them on. */
    :: atomic { response[me]?[CACHED] && !running -> response[me]?CACHED;
        assert(open);
        if :: me == 1 -> response[2]!CACHED :: else fi;
        open = false; running = true; started[op]++ }
    :: atomic { response[me]?[END] -> response[me]?END;
        if :: me == 1 -> response[2]!END :: else fi;
        ended = true }
    /* The batch ends when all have started it; I2: none of them has gone. */
    :: atomic { running && started[op] == N ->
        running = false; finished[op]++; op++ }
    /* The removal. */
    :: atomic { removal[me]?[1] && !met -> removal[me]?1; met = true;
        if
        :: me == 0 -> said_end = true; ended = true; response[1]!END
        :: else
        fi }
    :: atomic { met && ended && empty(response[me]) && !running ->
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
