/* Ranks that join with and without secrets, as threads of one process. */
#ifndef LUDA_COLLECTIVE_JOINERS_H
#define LUDA_COLLECTIVE_JOINERS_H

#include "collective_ranks.h"

static const char SECRET[] = "correct horse battery staple 0123";
#define OTHER "correct horse battery staple 0124"

static inline luda_comm_options with(const char *secret, bool encrypt, double timeout)
{
    return (luda_comm_options){ .size = sizeof(luda_comm_options), .timeout = timeout, .secret = secret,
                                .secret_bytes = secret ? strlen(secret) : 0, .encrypt = encrypt };
}

typedef struct applicant {
    luda_rendezvous *home;
    int rank, size;
    const char *secret;
    bool encrypt;
    double timeout;
    luda_status status;
    luda_comm *comm;
    char text[256];
} applicant;

static inline void *apply(void *opaque)
{
    applicant *a = opaque;
    luda_comm_options options = with(a->secret, a->encrypt, a->timeout);
    a->status = luda_comm_connect(luda_rendezvous_address(a->home), luda_rendezvous_session(a->home), a->rank, a->size,
                                  &options, &a->comm);
    if (a->status != LUDA_OK)
        snprintf(a->text, sizeof a->text, "%s", luda_last_error());
    return NULL;
}

static inline luda_rendezvous *meeting(int size, const char *secret)
{
    luda_comm_options options = with(secret, false, 0);
    luda_rendezvous *home = NULL;
    EXPECT_OK(luda_rendezvous_new(NULL, NULL, size, &options, &home));
    return home;
}

static inline void join_all(luda_rendezvous *home, int size, const char *secret, bool encrypt, luda_comm **comms)
{
    pthread_t threads[MOST];
    applicant a[MOST];
    for (int r = 0; r < size; r++) {
        a[r] = (applicant){ .home = home, .rank = r, .size = size, .secret = secret, .encrypt = encrypt, .timeout = 10 };
        pthread_create(&threads[r], NULL, apply, &a[r]);
    }
    for (int r = 0; r < size; r++) {
        pthread_join(threads[r], NULL);
        EXPECT(a[r].status == LUDA_OK);
        if (a[r].status != LUDA_OK)
            printf("%s\n", a[r].text);
        comms[r] = a[r].comm;
    }
}

#endif
