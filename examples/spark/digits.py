"""Images of digits, 8 x 8, made on the fly: seven segments, shifted and with noise."""
import numpy
from pyspark.ml.linalg import DenseVector

#            top, upper left, upper right, middle, lower left, lower right, bottom
SEGMENTS = ["1110111", "0010010", "1011101", "1011011", "0111010", "1101011", "1101111",
            "1010010", "1111111", "1111011"]
PLACES = [(slice(1, 2), slice(2, 6)), (slice(1, 4), slice(2, 3)), (slice(1, 4), slice(5, 6)),
          (slice(4, 5), slice(2, 6)), (slice(4, 7), slice(2, 3)), (slice(4, 7), slice(5, 6)),
          (slice(6, 7), slice(2, 6))]


def image(digit, random):
    """One digit as 64 numbers."""
    picture = numpy.zeros((8, 8), numpy.float32)
    for on, (rows, columns) in zip(SEGMENTS[digit], PLACES):
        if on == "1":
            picture[rows, columns] = 1.0
    picture = numpy.roll(picture, random.integers(-1, 2, 2), (0, 1))
    return (picture + random.normal(0, 0.2, picture.shape)).flatten()


def frame(session, count, seed=0):
    """A DataFrame with the columns ``image`` (a vector) and ``digit``."""
    random = numpy.random.default_rng(seed)
    digits = random.integers(0, 10, count).tolist()
    rows = [(DenseVector(image(digit, random).tolist()), digit) for digit in digits]
    return session.createDataFrame(rows, ["image", "digit"])
