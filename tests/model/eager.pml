/*
 * eager.pml: small cached tensors between hosts, taken back and ended; see
 * docs/design/002-eager.md.
 *
 * N ranks, each a group of its own, run OPS operations of one name.  `shape` says which
 * tensor each operation has; it changes, so that a number has to be taken back while others
 * have come to its next turn.  Rank 0 is the coordinator and may also evict the number.
 * Links keep their order, but overtake each other.  One rank may leave when it is idle.
 *
 * I1  an operation ends in the same way on all ranks: eagerly, or by response
 * I2  a number is taken back only by a promise that says how far its member came
 * I3  an item of the right number is of the turn after the last one of its sender
 * I4  when a rank leaves, an operation that was sent eagerly is done on all that stay, or on none
 * Every rank ends (the verifier finds any state in which ranks wait for ever).
 */
#define N 3
#define OPS 3
#define LAST 255                /* in place of a seq: the sender starts nothing more */

mtype = { EXECUTE, REVOKE };

/* rank, seq it takes back or 0, last turn of it that it has ended */
chan request = [4] of { byte, byte, byte };
/* seq given (EXECUTE) or taken back (REVOKE), last turn of the promising rank */
chan response[N] = [6] of { mtype, byte, byte };
/* from * N + to: seq, turn */
chan link[9] = [6] of { byte, byte };

bit shape[OPS];
byte how[OPS];                  /* 0 not ended, 1 eagerly, 2 by response */
byte failed[OPS];               /* ranks on which it was sent eagerly and did not end, as bits */
byte done[OPS];                 /* ranks that have done it eagerly, as bits */
bool farewell;                  /* a rank has left: */
byte gone;                      /* this one, as a bit */
hidden byte k, a, b;            /* of use within one atomic step only */

byte finished;                  /* ranks that have done their work */
byte announced, live_seq, next_seq = 1;

inline broadcast(kind, a, b)
{
    response[0]!kind(a, b); response[1]!kind(a, b); response[2]!kind(a, b)
}

inline send_all(a, b)
{
    for (k : 0 .. N - 1) {
        if
        :: k != me -> link[me * N + k]!a, b
        :: else
        fi
    }
}

#define all_came ((me == 0 || last[0] >= turn) && (me == 1 || last[1] >= turn) && \
                  (me == 2 || last[2] >= turn))
#define all_over ((me == 0 || over[0]) && (me == 1 || over[1]) && (me == 2 || over[2]))

/* The head of a link is the last message, or of a number up to the one known here. */
#define can_take(from) (link[from * N + me]?[LAST, 0] || link[from * N + me]?[1, _] && \
    known >= 1 || link[from * N + me]?[2, _] && known >= 2 || \
    link[from * N + me]?[3, _] && known >= 3)

inline take(from)
{
    link[from * N + me]?a, b;
    if
    :: a == LAST -> over[from] = true
    :: a != LAST && a == seq -> assert(b == last[from] + 1); last[from] = b     /* I3 */
    :: else                                             /* taken back: dropped */
    fi
}

#define agree(op) assert(failed[op] == 0 || (done[op] & ~gone) == 0)           /* I4 */

proctype Rank(byte me)
{
    byte op = 0, seq = 0, known = 0, turn = 0, last[N];
    bit cached_shape = 0;
    bool waiting = false, eager = false, usable = false, said_last = false, counted = false;
    bool over[N];

    do
    :: atomic { op == OPS && !waiting && !counted -> counted = true; finished++ }
    :: finished == N -> break
    /* Start the next operation. */
    :: atomic { !waiting && op < OPS && !farewell ->
        if
        :: usable && cached_shape == shape[op] ->
            turn++; eager = true; send_all(seq, turn)
        :: else ->
            request!me, (usable -> seq : 0), turn; usable = false
        fi;
        waiting = true }
    /* All have come. */
    :: atomic { eager && all_came ->
        assert(how[op] != 2);                           /* I1 */
        how[op] = 1; eager = false; waiting = false; done[op] = done[op] | 1 << me;
        agree(op); op++ }
    /* Items; one whose number is not known yet waits. */
    :: atomic { me != 0 && nempty(link[me]) && can_take(0) -> take(0) }
    :: atomic { me != 1 && nempty(link[N + me]) && can_take(1) -> take(1) }
    :: atomic { me != 2 && nempty(link[2 * N + me]) && can_take(2) -> take(2) }
    /* Responses. */
    :: atomic { response[me]?[EXECUTE, a, b] -> response[me]?EXECUTE(a, b);
        known = a;
        assert(waiting && !eager && how[op] != 1);                   /* I1 */
        how[op] = 2; seq = a; turn = 0; usable = true; cached_shape = shape[op];
        last[0] = 0; last[1] = 0; last[2] = 0;
        waiting = false; op++ }
    :: atomic { response[me]?[REVOKE, a, b] -> response[me]?REVOKE(a, b);
        assert(a == seq);
        usable = false;
        if
        :: eager && turn > b ->                      /* start over, in full */
            eager = false; seq = 0; request!me, 0, 0
        :: eager && turn <= b -> skip                /* all have come to it */
        :: else -> seq = 0
        fi }
    /* The coordinator: one request; eviction of a number that it has not started. */
    :: atomic { me == 0 && nempty(request) -> request?_, a, b;
        if
        :: live_seq != 0 ->
            assert(a == live_seq);                      /* I2 */
            broadcast(REVOKE, live_seq, b); live_seq = 0
        :: else
        fi;
        announced++;
        if
        :: announced == N ->
            announced = 0; live_seq = next_seq; next_seq++; broadcast(EXECUTE, live_seq, 0)
        :: else
        fi }
    :: atomic { me == 0 && live_seq != 0 && usable && seq == live_seq && !waiting &&
        op < OPS && !farewell ->
        broadcast(REVOKE, live_seq, turn); live_seq = 0; usable = false }
    /* Leaving; and the end of it for the others. */
    :: atomic { !farewell && !waiting && op > 0 -> farewell = true; gone = 1 << me;
        send_all(LAST, 0); said_last = true; break }
    :: atomic { farewell && !said_last -> said_last = true; send_all(LAST, 0) }
    :: atomic { farewell && said_last && all_over && !(eager && all_came) ->
        if
        :: eager -> failed[op] = failed[op] | 1 << me; agree(op)
        :: else
        fi;
        break }
    od;
    skip
}

init {
    byte i;
    atomic {
        for (i : 0 .. OPS - 1) {
            if :: shape[i] = 0 :: shape[i] = 1 fi
        }
        run Rank(0); run Rank(1); run Rank(2)
    }
}
