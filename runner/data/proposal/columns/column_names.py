"""Recognises labels, times, users, quantities and ids by the names of columns."""

from __future__ import annotations

import re
from collections.abc import Collection
from itertools import pairwise


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_TYPE = r":(token|float)(_seq)?"  # as RecBole writes types behind names
USER = re.compile(
    r"(user([._ -]?id)?|uid|(customer|member|visitor|reviewer|viewer|player)([._ -]?id)?)"
    rf"({_TYPE})?",
    re.I,
)
SESSION = re.compile(r"((user_?)?session|playlist|basket)([._ -]?(id|no|key))?|sid", re.I)
POSITION = re.compile(r"(.*[._ -])?(pos|position|index|rank)", re.I)
EVENT_TYPE = re.compile(r"(.*[._ -])?(event|action|behaviou?r|activity)([._ -]?(type|name))?", re.I)
ADDRESS = re.compile(r"[._ -]?ur[il]$", re.I)
QUERY = re.compile(r"q_?id|(search_?)?query([_ -]?(id|no|key))?|(search|srch)[_ -]?id", re.I)
WEIGHT = re.compile(r"(sample|row|importance|instance|ips|ipw)_?weight|importance|ipw", re.I)
PROPENSITY = re.compile(
    r"(.*_)?propensity(_?score)?|pscore|(action|logging|behaviou?r)_?prob(ability)?", re.I
)
TIME = re.compile(
    r"(unix|event|review|request)?_?(time|ts|timestamp|time_stamp|date_?time|created_?at)(_?(ms|s))?"
    rf"({_TYPE})?",
    re.I,
)
INDEX = re.compile(r"__index_level_\d+__")  # of pandas, where the index has no name
HISTORY = re.compile(r"hist|seq|past|previous|last_", re.I)
_NUMBERED = re.compile(r"(.*?)[_ -]?(\d+)")

TIME_WORDS = _words("time date day hour dt ts timestamp stamp datetime created updated at unix")
# times of the subject of a row, not of the row itself
_OTHER_TIMES = _words(
    """registration register registered birth born birthday birthdate dob release released signup
    expiration expire expires publish published publication join joined start end first last
    update updated modified delivery delivered shipping shipped closed resolved completed paid
    returned refunded cancelled canceled due since hire hired founded established"""
)
# of studies of survival, whose tables in R mostly have `time` and `status`
_EVENTS = _words("event death dead died deceased censored censor cens status relapse recurrence")
RATING_WORDS = _words("rating ratings stars overall")
_GRADES = _words("relevance relevancy rel esci judgement judgment")
_BESIDE_GRADES = _words("label grade level score graded human median mean query doc document is")
_OUTCOMES = _words(
    """booking booked enter label labels target y click clicked clk conversion convert converted
    purchase purchased buy bought like liked follow followed share shared comment
    commented forward forwarded hate favorite favourite cart install installed download
    downloaded attributed churn churned subscribe subscribed response responded outcome
    engagement engaged interaction income view completed finished fraud fraudulent spam
    canceled cancelled returned refunded renewed skip skipped survived died exited attrition
    readmitted phishing malicious malware anomaly anomalous"""
)
# labels of tables of choices; beside a click, `selected` may be a feature
_CHOICES = _words("choice chosen choose selected select accepted accept decision")
_BESIDE_OUTCOMES = _words("bool is has was did flag long profile")
_SOLD = _words("sales sold demand")
_BESIDE_SOLD = _words(
    """unit units item items number num total count qty quantity volume amount gross net store shop
    product daily weekly monthly day week month"""
)

_ID_WORDS = _words(
    """id ids uid pid uuid guid item movie film product sku ad ads user device code category
    categories cat type kind brand hash zip zipcode postcode gender sex country city
    region state province cluster group segment level class author artist track song album
    video clip book news article document doc publisher advertiser campaign creative site
    app domain page slot tag channel shop seller merchant store model os browser carrier
    isp ip network conn connection customer member visitor session query key isbn asin
    index occupation job profession language lang topic account phone pattern band bucket
    bin range tier grade plan version status flag template placement position banner
    format onehot categorical sparse"""
)
# as the last word these make an id: a number of types is a quantity, a type of numbers an id
_HARD_ID_WORDS = _words(
    """id ids uid code type category class level group segment bucket bin band range index hash
    key flag status tier grade plan version"""
)
_MEASURES = _words(
    "km miles sqft sqm hp kw kwh rpm mpg mph kmh kph bpm psi kg lbs cm mm ml kb mb gb"
)
_QUANTITY_WORDS = _MEASURES | _words(
    """age times num count counts cnt price prices amount amt score length len size rate ratio
    days nights hours minutes mins seconds secs sec ms weeks months years total sum avg mean
    median min max std var duration distance income salary wage wages balance quantity qty
    views clicks plays visits impressions likes shares comments reviews votes downloads
    installs purchases orders ctr cvr percent percentage pct gain gains loss losses cost
    bid budget spend spent revenue profit fee freq frequency recency weight fans followers
    dividends discount temperature temp time age rating stars integer int numeric dense
    continuous float lat latitude lon lng longitude mileage odometer horsepower calories amnt usd
    eur gbp"""
)
_COUNT_WORDS = _words(
    "num number count cnt nb total avg average mean sum max maximum min minimum std median"
)
_UNITS = _words("days nights hours minutes seconds weeks months years")
_QUANTITY_ENDINGS = tuple(
    _words("price count cnt amount duration salary income seconds minutes qty wgt")
)
_NO_ID = _words(
    """paid unpaid prepaid valid invalid grid avoid solid void hybrid liquid rapid fluid acid
    covid amid raid laid said bid mid"""
)
_ITEMS = _words(
    """item product movie film book song track music album artist article news video clip sku asin
    isbn poi business venue hotel restaurant game app content show listing recipe joke anime goods
    course episode podcast page post pin ad creative"""
)
_BESIDE_ITEMS = _words("id ids no nr number code key parent")
_CUTS = _words("per since of in from until ago by for")
_CUTS_OF_QUANTITIES = _words("on to at with before after")  # but `ship_to_zip` is a zip


def split_words(name: str) -> list[str]:
    """Return the words of a name in lower case: user, id and 2 for `userId2` or `user-id_2`."""
    name = re.sub(rf"(\.\$\w+)+$|{_TYPE}$", "", name)  # `.$numberLong` of MongoDB is a type, too
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_]+", name)
    return [part.lower() for part in parts]


def _plain_words(name: str) -> list[str]:
    return [word for word in split_words(name) if not word.isdigit()]


def guess_kind(name: str) -> str:
    """Return what a name suggests for whole numbers: `quantity`, `id`, or an empty text.

    The last known word decides, as in `age_level` and `level_age`; a word such as `num` or `days`
    in front makes the name that of a quantity. Words from `per` or `since` on are ignored, and so
    are those from `on` behind a quantity, as in `time_on_page`.
    """
    if re.fullmatch(r"I\d+", name):
        return "quantity"  # of Criteo
    if re.fullmatch(r"C\d+", name):
        return "id"
    if typed := re.search(f"{_TYPE}$", name):
        return "id" if typed[1] == "token" else "quantity"
    words = _plain_words(name)
    is_whole = len(words) < 2
    for before, word in pairwise(words):
        if word in _CUTS or (word in _CUTS_OF_QUANTITIES and before in _QUANTITY_WORDS):
            words = words[: words.index(word, 1)]
            break
    if not words:
        return ""
    if words[0] in _COUNT_WORDS and not is_whole and words[-1] not in _HARD_ID_WORDS:
        return "quantity"
    if words[0] in _UNITS and words[-1] not in _ID_WORDS:  # but `hours_slot` is a slot
        return "quantity"
    for word in reversed(words):
        if word in _ID_WORDS or (len(word) > 3 and word.endswith("id") and word not in _NO_ID):
            return "id"
        if word in _QUANTITY_WORDS or word.endswith(_QUANTITY_ENDINGS):
            return "quantity"
    return ""


def names_measure(name: str) -> bool:
    """Tell whether a name ends with a unit of measure, as `height_cm` and `weight_kg` do."""
    return bool(_MEASURES & {*_plain_words(name)[-1:]})


def names_item(name: str) -> bool:
    """Tell whether a name is that of the id of an item, such as `movieId` or `itemid`."""
    singular = {w if w in _ITEMS else w.removesuffix("s") for w in _plain_words(name)}
    singular = {w.removesuffix("id") or w for w in singular}
    return bool(_ITEMS & singular) and singular <= _ITEMS | _BESIDE_ITEMS


def is_outcome(name: str) -> bool:
    """Tell whether a name is that of a label, such as `is_click` or `purchased`.

    In a nested name only the last part counts, unless those before it are named like an id.
    """
    return _has_words(name, _OUTCOMES)


def has_outcome_word(name: str) -> bool:
    """Tell whether any word of a name is one of labels, as in `income_gt_50k`."""
    return bool(_OUTCOMES & set(split_words(name)))


def is_choice(name: str) -> bool:
    """Tell whether a name, as in `is_outcome`, is that of a choice among offers."""
    return _has_words(name, _CHOICES)


def _has_words(name: str, labels: frozenset[str]) -> bool:
    around, _, last = name.rpartition(".")
    name = last if guess_kind(around) != "id" else name
    words = set(_plain_words(name))
    return bool(labels & words) and words <= labels | _BESIDE_OUTCOMES


def is_event_in_time(name: str) -> bool:
    """Tell whether a name is that of an event in a study of survival, such as `event` or `died`."""
    words = set(_plain_words(name))
    return bool(_EVENTS & words) and words <= _EVENTS | _BESIDE_OUTCOMES


def is_coordinate(name: str, names: Collection[str], *, axes: str = "x") -> bool:
    """Tell whether y, or Y2, stands beside x, or X2, or beside all letters of `axes`."""
    if not re.fullmatch(r"y\d*", name, re.IGNORECASE):
        return False
    other_axes = [other.upper() if name[0] == "Y" else other for other in axes]
    return all(other + name[1:] in names for other in other_axes)


def is_year(name: str, names: Collection[str]) -> bool:
    """Tell whether a name such as y98 or Y2013 means a year, not one of the labels y1 and y2."""
    year = re.fullmatch(r"y_?(\d\d|(19|20)\d\d)", name, re.IGNORECASE)
    return year is not None and name[: year.start(1)] + "1" not in names


def is_amount_sold(name: str) -> bool:
    """Tell whether a name is that of the label in a table of sales, such as `units_sold`."""
    words = set(_plain_words(name))
    return bool(_SOLD & words) and words <= _SOLD | _BESIDE_SOLD


def is_rating(name: str) -> bool:
    """Tell whether a name is that of a user's rating, not of a mean of ratings."""
    words = split_words(name)
    return bool(words) and words[-1] in RATING_WORDS and not _COUNT_WORDS & set(words)


def is_grade(name: str) -> bool:
    """Tell whether a name is that of a grade of relevance, such as `relevance` or `esci_label`."""
    words = set(_plain_words(name))
    return bool(_GRADES & words) and words <= _GRADES | _BESIDE_GRADES


def sounds_like_time(name: str) -> bool:
    """Tell whether a word of a name is about time."""
    return bool(TIME_WORDS & set(split_words(name))) or TIME.fullmatch(name) is not None


def is_time_of_row(name: str) -> bool:
    """Tell whether a name may be that of the time of the row, not of a date of birth."""
    words = set(split_words(name))
    return not _OTHER_TIMES & (words - {"since"} if "epoch" in words else words)


def is_start(name: str) -> bool:
    """Tell whether a name is that of a start, which is the time of the row if there is no other."""
    return _OTHER_TIMES & set(split_words(name)) == {"start"}


def family_of(name: str) -> str:
    """Return what names such as C1 to C26 have in common; empty for others."""
    match = _NUMBERED.fullmatch(name)
    return match[1] if match and match[1] else ""
