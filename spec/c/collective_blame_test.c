/*
 * Who is blamed for what is known, decided here: rank 0 of three over a transport that says of the others whatever the test
 * wants. No network, no luck.
 */
#include "check.h"

#include <luda_transport.h>

#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { RANKS = 3, ROUNDS = 2 };
enum { SILENT = 0, WAITS, BUSY };

/* What rank r does, from the call that matters on: comes to it or not, and answers each round of questions so. */
typedef struct scene {
    const char *what;
    bool data;            /* an all_reduce of 1,000 values instead of a barrier */
    bool comes[RANKS];
    int answers[ROUNDS][RANKS];
    int behind[RANKS];    /* how many calls it is behind, as it answers */
    int rounds;           /* of questions that are asked */
    unsigned blamed;
    const char *text;
} scene;

static const scene scenes[] = {
    { "computes elsewhere", false, { 1, 1, 0 }, { { 0, WAITS, BUSY } }, { 0, 0, 1 }, 1, 4, "rank 2 has not arrived at call 2; "
      "rank 2 was last seen at call 1, barrier" },
    { "does not answer", false, { 1, 1, 0 }, { { 0, WAITS, SILENT } }, { 0 }, 1, 4, "rank 2 does not answer rank 0; rank 2" },
    { "waits for a silent one", false, { 1, 0, 0 }, { { 0, WAITS, SILENT } }, { 0, 1, 1 }, 1, 4, "rank 2 does not answer" },
    { "waits for a busy one", false, { 1, 0, 0 }, { { 0, WAITS, BUSY } }, { 0, 1, 1 }, 1, 4, "rank 2 has not arrived" },
    { "waits for one that arrived and fell silent", false, { 1, 0, 1 }, { { 0, WAITS, SILENT } }, { 0, 1, 0 }, 1, 4,
      "rank 2 does not answer" },
    { "falls silent while all wait", false, { 1, 0, 0 }, { { 0, WAITS, WAITS }, { 0, WAITS, SILENT } }, { 0, 1, 1 }, 2, 4,
      "rank 2 does not answer" },
    { "all wait elsewhere", false, { 1, 0, 0 }, { { 0, WAITS, WAITS }, { 0, WAITS, WAITS } }, { 0, 1, 1 }, 2, 6,
      "ranks 1 and 2 have not arrived at call 2" },
    { "both are silent", false, { 1, 0, 1 }, { { 0 } }, { 0 }, 1, 2, "rank 1 does not answer" },
    { "falls silent with data due", true, { 1, 1, 1 }, { { 0, WAITS, SILENT } }, { 0 }, 1, 4, "rank 2 does not answer" },
    { "left the call with data due", true, { 1, 1, 1 }, { { 0, WAITS, BUSY }, { 0, WAITS, BUSY } }, { 0 }, 2, 4,
      "rank 2 is no longer in call 2" },
    { "went on with data due", true, { 1, 1, 1 }, { { 0, WAITS, WAITS }, { 0, WAITS, WAITS } }, { 0, 0, -1 }, 2, 4,
      "rank 2 is no longer in call 2" },
    { "all wait with data due", true, { 1, 1, 1 }, { { 0, WAITS, WAITS }, { 0, WAITS, WAITS } }, { 0 }, 2, 6,
      "ranks 1 and 2 sent no data" },
    { "falls silent while all wait for data", true, { 1, 1, 1 }, { { 0, WAITS, WAITS }, { 0, SILENT, WAITS } }, { 0 }, 2, 2,
      "rank 1 does not answer" },
};

typedef struct oracle {
    luda_board *board;
    const scene *scene;
    int rounds;
    void (*asked)(struct oracle *o);
} oracle;

static luda_status announce(void *state, const luda_announcement *a)
{
    oracle *o = state;
    for (int r = 1; r < RANKS; r++)
        if (a->sequence == 1 || o->scene->comes[r])
            luda_board_announced(o->board, r, a);
    return LUDA_OK;
}

static void query(void *state)
{
    oracle *o = state;
    int round = o->rounds++;
    if (o->asked)
        o->asked(o);
    for (int r = 1; r < RANKS && round < ROUNDS; r++)
        if (o->scene->answers[round][r] != SILENT)
            luda_board_alive(o->board, r, (uint64_t)(2 - o->scene->behind[r]), o->scene->answers[round][r] == WAITS);
}

static luda_status drop(void *state, int to, luda_slot_name slot, const void *data, size_t bytes)
{
    if (slot.kind == LUDA_SLOT_STEP)
        luda_board_sent(((oracle *)state)->board, 0);
    return LUDA_OK;
}

static luda_comm *open_comm(oracle *o)
{
    luda_transport t = { .size = sizeof t, .name = "oracle", .state = o, .announce = announce, .query = query, .send = drop };
    luda_comm *comm = NULL;
    EXPECT_OK(luda_board_new(RANKS, 0, &o->board));
    EXPECT_OK(luda_comm_new_over(&t, o->board, 0, NULL, &comm));
    EXPECT_OK(luda_comm_barrier(comm, NULL));
    return comm;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static unsigned blamed(const luda_comm *comm)
{
    int32_t ranks[RANKS];
    unsigned set = 0;
    int count = luda_comm_culprits(comm, ranks, RANKS);
    for (int i = 0; i < count; i++)
        set |= 1u << ranks[i];
    return set;
}

static luda_status call(luda_comm *comm, bool data, double timeout)
{
    luda_comm_options options = { .size = sizeof options, .timeout = timeout };
    int64_t shape = 1000;
    luda_tensor *x, *y = NULL;
    luda_status status;
    if (!data)
        return luda_comm_barrier(comm, &options);
    EXPECT_OK(luda_tensor_new(LUDA_F32, (luda_device){ LUDA_CPU, 0 }, 1, &shape, &x));
    status = luda_comm_all_reduce(comm, x, LUDA_REDUCE_SUM, &options, &y);
    EXPECT(y == NULL);
    luda_tensor_release(x);
    return status;
}

static void play(const scene *s)
{
    oracle o = { .scene = s };
    luda_comm *comm = open_comm(&o);
    double start = now();
    luda_status status = call(comm, s->data, 0.3);
    int failed_before = failed;
    EXPECT(status == LUDA_ETIMEOUT);
    EXPECT(now() - start > 0.29 && now() - start < 2);
    EXPECT(blamed(comm) == s->blamed && strstr(luda_last_error(), s->text));
    EXPECT(o.rounds == s->rounds);
    if (failed > failed_before)
        printf("%s: %d rounds, %x: %s\n", s->what, o.rounds, blamed(comm), luda_last_error());
    luda_comm_release(comm);
    luda_board_release(o.board);
}

/* A message has one sender: that another rank is silent does not matter. */
static void test_message(void)
{
    const scene s = { .comes = { 1, 0, 0 }, .answers = { { 0, WAITS, SILENT }, { 0, WAITS, SILENT } } };
    luda_comm_options options = { .size = sizeof options, .timeout = 0.3 };
    oracle o = { .scene = &s };
    luda_comm *comm = open_comm(&o);
    luda_tensor *x = NULL;
    EXPECT_STATUS(LUDA_ETIMEOUT, luda_comm_recv(comm, 1, &options, &x));
    EXPECT(blamed(comm) == 2 && strstr(luda_last_error(), "rank 1 sent no data"));
    luda_comm_release(comm);
    luda_board_release(o.board);
}

/* --- A process that was stopped --- */

static int stopped_pipe[2];

static void tell(oracle *o)
{
    luda_comm_fault fault = { .status = LUDA_ETIMEOUT, .culprits = { 1 } };
    snprintf(fault.text, sizeof fault.text, "barrier: rank 0 does not answer rank 1");
    if (o->rounds == 1)
        EXPECT(write(stopped_pipe[1], "?", 1) == 1);
    else /* what the others said meanwhile is read now */
        luda_board_failed(o->board, 2, &fault);
}

/* It asked, was stopped before anybody answered, and goes on after the deadline: it asks again, and learns who is given up. */
static void test_stopped(void)
{
    const scene s = { .comes = { 1, 0, 0 } };
    char byte;
    int status;
    pid_t child;
    EXPECT(pipe(stopped_pipe) == 0);
    child = fork();
    if (child == 0) {
        oracle o = { .scene = &s, .asked = tell };
        luda_comm *comm = open_comm(&o);
        EXPECT_STATUS(LUDA_ETIMEOUT, call(comm, false, 1.0));
        EXPECT(blamed(comm) == 1 && o.rounds == 2 && strstr(luda_last_error(), "gave call 2 up because of rank 0"));
        luda_comm_release(comm);
        luda_board_release(o.board);
        fflush(stdout);
        _exit(failed != 0);
    }
    EXPECT(read(stopped_pipe[0], &byte, 1) == 1);
    kill(child, SIGSTOP);
    usleep(1000000);
    kill(child, SIGCONT);
    EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(stopped_pipe[0]);
    close(stopped_pipe[1]);
}

int main(void)
{
    luda_context *context;
    test_stopped(); /* first: a child is forked before there are threads */
    EXPECT_OK(luda_context_new(&context));
    luda_context_use(context);
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
        play(&scenes[i]);
    test_message();
    luda_context_release(context);
    return summary("collective blame");
}
