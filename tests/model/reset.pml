/*
 * reset.pml: a reset of an elastic job against the death of any process and any cut, at any
 * moment; see docs/design/004-elastic.md and src/elastic/membership.h.
 *
 * N workers and the driver.  A worker trains in a generation, or asks for one (READY) and waits,
 * or meets the others of its assignment.  The environment kills up to DEATHS workers and cuts up
 * to CUTS directions: of a worker to the driver, of the driver to a worker, of one worker to
 * another.  What is sent into a cut is lost.  Whoever hears nothing from a peer it needs gives the
 * generation up, names it, and asks again; the driver loses who is silent, and ends its process.
 *
 * I1  all who train in a generation have the same members
 * I2  who trains in the newest generation is a member of it, and nobody is in a newer one
 * I3  a worker that the driver has given up never trains again in a later generation
 * The verifier finds any state in which living workers wait for ever: in the end all living ones
 * train in one generation, and reach each other.
 */
#define N 3
#define DEATHS 1
#define CUTS 1
#define PATIENCE 2              /* rule 10: accusations without a meeting */

#define bit(w) (1 << (w))

chan ready[N] = [2] of { byte, byte };          /* generation, accused worker + 1 */
chan assign[N] = [2] of { byte, byte };         /* generation, members */

byte alive = 7;                 /* processes, as bits */
byte cut_up, cut_down;          /* worker -> driver, driver -> worker */
byte deaf[N];                   /* whom a worker does not hear any more */
byte deaths, cuts;
byte given_up;                  /* by the driver */
byte trains[N], members[N];     /* generation in which it trains, 0: none; its members */
byte at[N];                     /* generation it meets or trains in */
byte newest;
bool broken[N];                 /* its generation is over, as it has heard */
hidden byte k, g, a, d, worst, i, j;    /* of use within one atomic step only */

/* w needs m and does not hear it: dead, cut off, or elsewhere */
#define lacks(w, m) (!(alive & bit(m)) || (deaf[w] & bit(m)) || at[m] > at[w])

proctype worker(byte w)
{
    byte generation = 0, mine = 0, accused = 0;

ask:
    atomic {
        if
        :: !(alive & bit(w)) -> goto dead
        :: else
        fi;
        trains[w] = 0;
        if
        :: cut_up & bit(w)                      /* lost on the way */
        :: else -> ready[w]!generation, accused
        fi
    }
    do
    :: atomic { assign[w]?generation, mine ->
        accused = 0; at[w] = generation; members[w] = mine; broken[w] = false; break }
    :: atomic { !(alive & bit(w)) -> goto dead }
    od;
    /* All members come to the meeting, or it fails for a reason that somebody can name. */
    do
    :: atomic { !(alive & bit(w)) -> goto dead }
    :: atomic {
        alive & bit(w) &&
        (!(mine & 1) || at[0] == generation) && (!(mine & 2) || at[1] == generation) &&
        (!(mine & 4) || at[2] == generation) && !(deaf[w] & mine) && !broken[w] ->
        trains[w] = generation;
        for (k : 0 .. N - 1) {
            assert(!trains[k] || trains[k] != generation || members[k] == mine)     /* I1 */
        }
        assert(generation <= newest && (mine & bit(w)));                            /* I2 */
        assert(generation < newest || !(given_up & bit(w)));                        /* I3 */
        break }
    :: atomic { alive & bit(w) && (mine & 1) && w != 0 && lacks(w, 0) -> accused = 1; goto fail }
    :: atomic { alive & bit(w) && (mine & 2) && w != 1 && lacks(w, 1) -> accused = 2; goto fail }
    :: atomic { alive & bit(w) && (mine & 4) && w != 2 && lacks(w, 2) -> accused = 3; goto fail }
    :: atomic { alive & bit(w) && broken[w] -> accused = 0; goto fail }
    od;
    /* Training goes on until somebody it needs is not heard, or says that it is over. */
end_trains:
    do
    :: atomic { !(alive & bit(w)) -> goto dead }
    :: atomic { alive & bit(w) && (mine & 1) && w != 0 && lacks(w, 0) -> accused = 1; goto fail }
    :: atomic { alive & bit(w) && (mine & 2) && w != 1 && lacks(w, 1) -> accused = 2; goto fail }
    :: atomic { alive & bit(w) && (mine & 4) && w != 2 && lacks(w, 2) -> accused = 3; goto fail }
    :: atomic { alive & bit(w) && broken[w] -> accused = 0; goto fail }
    od;

fail:
    atomic {                    /* the verdict reaches those who hear this worker */
        trains[w] = 0;
        for (k : 0 .. N - 1) {
            if
            :: k != w && (mine & bit(k)) && at[k] == generation && !(deaf[k] & bit(w)) ->
                broken[k] = true
            :: else
            fi
        }
        at[w] = generation + 1; /* it has left this generation */
        goto ask
    }
dead:
    atomic { trains[w] = 0; at[w] = 255 }
}

/* One event at a time; a new generation when every living member is ready (rule 1). */
proctype driver()
{
    byte is_ready = 0, member = 7, said[N];

end_driver:
    do
    :: atomic { ready[0]?g, a -> d = 0; goto heard }
    :: atomic { ready[1]?g, a -> d = 1; goto heard }
    :: atomic { ready[2]?g, a -> d = 2; goto heard }
    /* It is dead, or PINGs are not answered: given up, and its process is ended. */
    :: atomic { (!(alive & 1) || ((cut_up | cut_down) & 1)) && !(given_up & 1) -> d = 0; goto lost }
    :: atomic { (!(alive & 2) || ((cut_up | cut_down) & 2)) && !(given_up & 2) -> d = 1; goto lost }
    :: atomic { (!(alive & 4) || ((cut_up | cut_down) & 4)) && !(given_up & 4) -> d = 2; goto lost }
    od;
heard:
    atomic {
        if
        :: given_up & bit(d) -> goto end_driver         /* cut off: nothing it says counts */
        :: else
        fi;
        is_ready = is_ready | bit(d);
        if
        :: a != 0 && (member & bit(a - 1)) && !(given_up & bit(a - 1)) -> said[a - 1]++
        :: else
        fi;
        goto form
    }
lost:
    atomic {
        given_up = given_up | bit(d); alive = alive & ~bit(d);
        is_ready = is_ready & ~bit(d); member = member & ~bit(d)
    }
form:
    atomic {
        if
        :: member == 0 || is_ready != member -> goto end_driver
        :: else
        fi;
        /* Rule 10: who was named again and again, and is here, is not reached by the others. */
        worst = 0;
        if
        :: said[1] >= PATIENCE && (member & 2) && member != 2 -> worst = 2
        :: else
        fi;
        if
        :: said[2] >= PATIENCE && (member & 4) && member != 4 -> worst = 3
        :: else
        fi;
        if
        :: worst == 0 && said[0] >= PATIENCE && (member & 1) && member != 1 -> worst = 1
        :: else
        fi;
        if
        :: worst != 0 -> d = worst - 1; said[0] = 0; said[1] = 0; said[2] = 0; goto lost
        :: else
        fi;
        newest++;
        assert(newest < 20);                            /* no endless resets */
        is_ready = 0;
        for (d : 0 .. N - 1) {
            if
            :: (member & bit(d)) && !(cut_down & bit(d)) -> assign[d]!newest, member
            :: else
            fi
        }
        goto end_driver
    }
}

proctype environment()
{
    do
    :: atomic { deaths < DEATHS -> select(i : 0 .. 2);
        alive = alive & ~bit(i); deaths++ }
    :: atomic { cuts < CUTS -> select(i : 0 .. 2); cut_up = cut_up | bit(i); cuts++ }
    :: atomic { cuts < CUTS -> select(i : 0 .. 2); cut_down = cut_down | bit(i); cuts++ }
    :: atomic { cuts < CUTS -> select(i : 0 .. 2); select(j : 0 .. 2);
        if
        :: i != j -> deaf[i] = deaf[i] | bit(j); cuts++
        :: else
        fi }
    :: break
    od
}

init { atomic { run driver(); run worker(0); run worker(1); run worker(2); run environment() } }
