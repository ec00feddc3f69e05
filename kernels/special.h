/*
 * Special functions that neither libm nor the device's library has, in double: one source for the CPU and for CUDA, which
 * sets SPECIAL to its qualifiers.
 */
#ifndef LUDA_SPECIAL_H
#define LUDA_SPECIAL_H

#include <math.h>
#include <stdint.h>

#ifndef SPECIAL
#define SPECIAL static inline
#endif

#define SPECIAL_PI 3.14159265358979323846

/*
 * A rational start (Winitzki 2008), then Halley's method on erf, or on erfc where 1 - |x| is small: three steps reach the
 * last digits.
 */
SPECIAL double special_erfinv(double x)
{
    double a = fabs(x);
    if (!(a < 1))
        return a == 1 ? copysign(INFINITY, x) : NAN;
    double l = log1p(-a * a), h = 2 / (SPECIAL_PI * 0.147) + l / 2, y = sqrt(sqrt(h * h - l / 0.147) - h);
    for (int step = 0; step < 3; step++) {
        double over = (a < 0.5 ? erf(y) - a : (1 - a) - erfc(y)) * (0.5 * sqrt(SPECIAL_PI)) * exp(y * y);
        y -= over / (1 + y * over);
    }
    return copysign(a == 0 ? 0 : y, x);
}

SPECIAL double special_digamma(double x)
{
    double below = 0;
    if (x == 0)
        return copysign(INFINITY, -x);
    if (x < 0) {
        if (x == floor(x))
            return NAN;
        double turn = x - floor(x); /* of half turns, so that no digits are lost */
        below = -SPECIAL_PI / tan(SPECIAL_PI * turn);
        x = 1 - x;
    }
    for (; x < 10; x++)
        below -= 1 / x;
    double z = 1 / (x * x);
    double p = z * (1.0 / 12 - z * (1.0 / 120 - z * (1.0 / 252 - z * (1.0 / 240 - z * (1.0 / 132 - z * (691.0 / 32760 - z / 12))))));
    return log(x) - 0.5 / x - p + below;
}

/* sum over k of (q + k)^-s for a whole s of 2 or more: terms up to 12, then the formula of Euler and Maclaurin. */
SPECIAL double special_zeta(double s, double q)
{
    const double bernoulli[] = { 1.0 / 6, -1.0 / 30, 1.0 / 42, -1.0 / 30, 5.0 / 66, -691.0 / 2730, 7.0 / 6, -3617.0 / 510 };
    double sum = 0;
    if (q <= 0 && q == floor(q))
        return INFINITY;
    if (q == INFINITY)
        return 0;
    if (q < -1e6)
        return NAN; /* more terms than anybody waits for */
    for (; q < 12; q++)
        sum += pow(q, -s);
    double power = pow(q, -s), factor = s / (2 * q);
    sum += power * q / (s - 1) + power / 2;
    for (int k = 0; k < 8; k++) {
        sum += power * factor * bernoulli[k];
        factor *= (s + 2 * k + 1) * (s + 2 * k + 2) / ((2 * k + 3) * (2 * k + 4) * q * q);
    }
    return sum;
}

SPECIAL double special_polygamma(double n, double x)
{
    if (n == 0)
        return special_digamma(x);
    if (!(n > 0) || n != floor(n))
        return NAN;
    if (n == 1 && x < 0) { /* by reflection */
        double sine = sin(SPECIAL_PI * (x - floor(x)));
        return x == floor(x) ? INFINITY : (SPECIAL_PI / sine) * (SPECIAL_PI / sine) - special_zeta(2, 1 - x);
    }
    double size = tgamma(n + 1) * special_zeta(n + 1, x);
    return n - 2 * floor(n / 2) == 1 ? size : -size;
}

/* The quotient's floor, exact where the quotient itself is rounded. */
SPECIAL double special_floor_divide(double x, double y)
{
    if (y == 0)
        return x / y;
    double rest = fmod(x, y), quotient = (x - rest) / y;
    if (rest != 0 && (rest < 0) != (y < 0))
        quotient -= 1;
    if (quotient == 0)
        return copysign(0.0, x / y);
    double whole = floor(quotient);
    return quotient - whole > 0.5 ? whole + 1 : whole;
}

/* A divisor of 0 was refused before. */
SPECIAL int64_t special_floor_divide_int(int64_t x, int64_t y)
{
    if (y == 0)
        return 0;
    if (y == -1)
        return (int64_t)(0 - (uint64_t)x);
    return x / y - (x % y != 0 && (x < 0) != (y < 0));
}

SPECIAL int64_t special_fmod_int(int64_t x, int64_t y)
{
    return y == 0 || y == -1 ? 0 : x % y;
}

SPECIAL int64_t special_gcd(int64_t x, int64_t y)
{
    uint64_t a = x < 0 ? 0 - (uint64_t)x : (uint64_t)x, b = y < 0 ? 0 - (uint64_t)y : (uint64_t)y;
    while (b != 0) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return (int64_t)a;
}

SPECIAL int64_t special_lcm(int64_t x, int64_t y)
{
    if (x == 0 || y == 0)
        return 0;
    uint64_t a = x < 0 ? 0 - (uint64_t)x : (uint64_t)x, b = y < 0 ? 0 - (uint64_t)y : (uint64_t)y;
    return (int64_t)(a / (uint64_t)special_gcd(x, y) * b);
}

/* y is the number of places, of `width` that the type has. */
SPECIAL int64_t special_left_shift(int64_t x, int64_t y, int width)
{
    return y < 0 || y >= width ? 0 : (int64_t)((uint64_t)x << y);
}

SPECIAL int64_t special_right_shift(int64_t x, int64_t y, int width)
{
    return y < 0 || y >= width ? -(x < 0) : x >> y;
}

#define SOFTPLUS(x) (((x) > 0 ? (x) : 0) + log1p(exp(-fabs(x))))
#define LOGADDEXP(x, y) ((x) == (y) ? (x) + 0.69314718055994531 : fmax(x, y) + log1p(exp(-fabs((x) - (y)))))
#define ERFINV(x) special_erfinv(x)
#define DIGAMMA(x) special_digamma(x)
#define POLYGAMMA(n, x) special_polygamma(n, x)
#define GCD(x, y) special_gcd(x, y)
#define LCM(x, y) special_lcm(x, y)
#define LEFT_SHIFT(x, y) special_left_shift(x, y, 8 * (int)sizeof(x))
#define RIGHT_SHIFT(x, y) special_right_shift(x, y, 8 * (int)sizeof(x))

#endif
