/*
 * negotiation.pml: the response cache of a process set on one host, and the change of
 * generation after a crash; see docs/design/001-one-product.md.
 *
 * N ranks run OPS operations of one name.  `shape` says which tensor each operation has; it
 * changes, so that cached numbers have to be taken back while others have started.  Rank 0
 * is the coordinator, and may also evict the number.  One rank may crash at any point; the
 * survivors then form generation 2 and run their operations again.
 *
 * I1  an operation ends in the same way on all ranks: directly on the board, or by response
 * I2  a response or request of an old generation is never acted on
 * I3  a board turn is committed only when every rank of the generation has come
 * Every rank that lives ends (no invalid end state, checked with a weak form of liveness:
 * the verifier finds any state in which ranks wait for ever).
 */
#define N 3
#define OPS 2
#define NONE 15

mtype = { REQUEST, EXECUTE, REVOKE };

/* to the coordinator: generation, rank, operation, revoked seq */
chan request = [8] of { mtype, byte, byte, byte, byte };
/* from it: generation, cached seq (EXECUTE) or seq taken back (REVOKE), promising rank */
chan response[N] = [8] of { mtype, byte, byte, byte };

bit shape[OPS];
byte generation = 1;
byte crashed = NONE;
byte present;                   /* ranks that have come to generation 2 */
byte came[N];                   /* board: operation + 1 this rank has come to, per seq */
byte came_seq[N];
byte how[OPS];                  /* 0 not ended, 1 direct, 2 response */
byte ended[3];                  /* ranks that have done their work, by generation */

#define alive(r) (crashed != r)
#define all_came(op, s) ((!alive(0) || (came[0] == op + 1 && came_seq[0] == s)) && \
                         (!alive(1) || (came[1] == op + 1 && came_seq[1] == s)) && \
                         (!alive(2) || (came[2] == op + 1 && came_seq[2] == s)))
#define verdict (crashed != NONE && my_gen == 1)

/* The coordinator's state; rank 0 (or, in generation 2, the lowest that lives) owns it. */
byte announced;
byte live_seq;                  /* 0: not cached */
byte next_seq = 1;
byte op_done;                   /* operations answered by response */

inline broadcast(kind, a, b)
{
    byte k;
    for (k : 0 .. N - 1) {
        if
        :: alive(k) -> response[k]!kind(my_gen, a, b)
        :: else
        fi
    }
}

inline revoke(promising)
{
    broadcast(REVOKE, live_seq, promising);
    live_seq = 0
}

/* One request, handled atomically: the coordinator is one thread. */
inline coordinate()
{
    atomic {
        request?REQUEST(g, from, op_in, rev);
        if
        :: g != my_gen -> skip          /* I2: refused */
        :: else ->
            if
            :: live_seq != 0 -> revoke(from)
            :: else
            fi;
            announced++;
            if
            :: announced == members ->
                announced = 0;
                live_seq = next_seq;
                next_seq++;
                broadcast(EXECUTE, live_seq, NONE)
            :: else
            fi
        fi
    }
}

proctype Rank(byte me)
{
    byte my_gen = 1, op = 0, seq = 0, cached_shape = 0, members = N;
    byte g, a, b, from, op_in, rev;
    bool waiting = false, direct = false, orphan = false;
    bool coordinator = (me == 0);

work:
    do
    :: op == OPS && !waiting -> break
    /* Crash: once, anywhere before the first rank has ended its work. */
    :: atomic { crashed == NONE && my_gen == 1 && ended[1] == 0 -> crashed = me; goto dead }
    /* The verdict: everything in flight fails, and a new generation forms. */
    :: verdict -> goto reform
    /* Start the next operation. */
    :: !waiting && op < OPS && !verdict ->
        atomic {
            if
            :: seq != 0 && cached_shape == shape[op] ->
                came[me] = op + 1; came_seq[me] = seq; direct = true
            :: else ->
                rev = seq; seq = 0; direct = false;
                request!REQUEST(my_gen, me, op, rev)
            fi;
            waiting = true
        }
    /* Directly: all have come. */
    :: atomic { waiting && direct && all_came(op, seq) && !verdict ->
        assert(how[op] != 2);                           /* I1 */
        how[op] = 1; waiting = false; direct = false; op++;
        if :: orphan -> seq = 0; orphan = false :: else fi }
    /* A response. */
    :: atomic { response[me]?[EXECUTE, g, a, b] && !verdict -> response[me]?EXECUTE(g, a, b);
        if
        :: g != my_gen -> skip
        :: else ->
            assert(waiting && !direct);                 /* the coordinator counted us */
            assert(how[op] != 1);                       /* I1 */
            how[op] = 2; seq = a; cached_shape = shape[op];
            waiting = false; op++
        fi }
    :: atomic { response[me]?[REVOKE, g, a, b] && !verdict -> response[me]?REVOKE(g, a, b);
        if
        :: g != my_gen -> skip
        :: else ->
            if
            :: direct && seq == a ->
                if
                :: came[b] == op + 1 && came_seq[b] == a ->
                    orphan = true                       /* the promise is about later */
                :: else ->
                    direct = false; seq = 0;            /* start over, in full */
                    request!REQUEST(my_gen, me, op, 0)
                fi
            :: else -> if :: seq == a -> seq = 0 :: else fi
            fi
        fi }
    /* Coordinator: requests, and eviction of a number it has not started itself. */
    :: coordinator && !verdict && request?[REQUEST, g, from, op_in, rev] -> coordinate()
    :: atomic { coordinator && !verdict && live_seq != 0 && !direct && !waiting && op < OPS &&
        seq == live_seq -> revoke(me); seq = 0 }    /* its promise holds from now */
    od;
    goto serve;

reform:
    atomic {
        my_gen = 2; members = N - 1; op = 0; seq = 0; waiting = false; direct = false; orphan = false;
        coordinator = (me == 0 || (me == 1 && crashed == 0));
        came[me] = 0;
        if
        :: coordinator -> announced = 0; live_seq = 0
        :: else
        fi;
        if
        :: present == 0 ->
            generation = 2;
            for (a : 0 .. OPS - 1) { how[a] = 0 }
        :: else
        fi;
        present++
    }
    present == N - 1;           /* the rendezvous: the table goes out when all have come */
    goto work;

serve:
    /* Done here; others may still need the coordinator, or a crash may come. */
    ended[my_gen]++;
    do
    :: atomic { my_gen == 1 && crashed != NONE -> goto reform }
    :: coordinator && request?[REQUEST, g, from, op_in, rev] -> coordinate()
    :: ended[my_gen] == members && (my_gen == 2 || crashed == NONE) -> break
    od;
dead:
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
