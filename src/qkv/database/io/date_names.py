"""Dates with names of months in several languages, such as 3. März 2024, 5 de agosto de 2024 and 3rd of March 2024.

A text is split into words and numbers. Names of months become the abbreviations that `strptime` reads, names of
weekdays and words such as "de" are left out, and the rest is joined by spaces: `Montag, den 3. März 2024` becomes
`3 Mar 2024`. Accents and case have no meaning. The directive %B stands for such a name.

Source: the names are those of the Unicode CLDR (https://cldr.unicode.org), calendar "gregorian", for English, German,
French, Spanish, Italian, Portuguese, Dutch, Swedish, Danish, Norwegian, Finnish, Polish and Russian.
"""

from __future__ import annotations

import re
import unicodedata

__all__ = ["canonical_date", "canonical_format", "canonical_sql", "named_format"]

_ENGLISH = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTHS = (
    "jan january januar janner janv janvier ene enero gen gennaio janeiro januari tammi tammikuuta tammikuu sty "
    "stycznia styczen янв января январь jaenner",
    "feb february februar fevr fevrier febrero febbraio fev fevereiro februari helmi helmikuuta helmikuu lut lutego "
    "luty февр февраля февраль",
    "mar march marz mars marzo marco mrt maart marts maalis maaliskuuta maaliskuu marca marzec мар март марта maerz",
    "apr april avr avril abr abril aprile huhti huhtikuuta huhtikuu kwi kwietnia kwiecien апр апреля апрель",
    "may mai mayo mag maggio maio mei maj touko toukokuuta toukokuu maja мая маи",
    "jun june juni juin junio giu giugno junho kesa kesakuuta kesakuu cze czerwca czerwiec июн июнь июня",
    "jul july juli juil juillet julio lug luglio julho heina heinakuuta heinakuu lip lipca lipiec июл июль июля",
    "aug august aout ago agosto augustus augusti elo elokuuta elokuu sie sierpnia sierpien авг августа август",
    "sep september sept septembre septiembre set settembre setembro syys syyskuuta syyskuu wrz wrzesnia wrzesien "
    "сент сентября сентябрь",
    "oct october okt oktober octobre octubre ott ottobre out outubro loka lokakuuta lokakuu paz pazdziernika "
    "pazdziernik окт октября октябрь",
    "nov november novembre noviembre novembro marras marraskuuta marraskuu lis listopada listopad нояб ноября ноябрь",
    "dec december dez dezember decembre dic diciembre dicembre dezembro des desember joulu joulukuuta joulukuu gru "
    "grudnia grudzien дек декабря декабрь",
)
_LEFT_OUT = """
sun mon tue wed thu fri sat sunday monday tuesday wednesday thursday friday saturday so mo di mi do fr sa sonntag
montag dienstag mittwoch donnerstag freitag samstag dim lun mer jeu ven sam dimanche lundi mardi mercredi jeudi
vendredi samedi dom mie jue vie sab domingo lunes martes miercoles jueves viernes sabado gio domenica lunedi
martedi mercoledi giovedi venerdi sabato seg ter qua qui sex segunda feira terca quarta quinta sexta zo ma wo vr
za zondag maandag dinsdag woensdag donderdag vrijdag zaterdag son man tis ons tors fre lor sondag mandag tisdag
onsdag torsdag fredag lordag søn tirs lør søndag tirsdag lørdag tir tor su ti ke to pe la sunnuntai maanantaina
tiistaina keskiviikkona torstaina perjantaina lauantaina niedz pon wt sr czw pt sob niedziela poniedziałek wtorek
sroda czwartek piatek sobota вс пн вт ср чт пт сб воскресенье понедельник вторник среда четверг пятница суббота
de del of the den der le el il er st nd rd th um at г года º ª
"""
_WORDS = {name: english for english, names in zip(_ENGLISH, _MONTHS, strict=True) for name in names.split()}
_WORDS.update(dict.fromkeys(_LEFT_OUT.split(), ""))

_NUMBER = "[0-9]+(?:[:.][0-9]+)*"
_TOKEN = re.compile(rf"[^\W\d_]+|{_NUMBER}")
_DIRECTIVES = re.compile(r"%[HIMSf](?:[:.]%[MSf])*|%[a-zA-Z]|[^\W\d_]+")
_KINDS = {
    "nbY": ("%d", "%B", "%Y"),
    "bnY": ("%B", "%d", "%Y"),
    "Ybn": ("%Y", "%B", "%d"),
    "nby": ("%d", "%B", "%y"),
    "bY": ("%B", "%Y"),
    "Yb": ("%Y", "%B"),
}
"""The orders of day, month and year by the kinds of the parts: n is a day, b the name of a month, y and Y are years."""


def canonical_date(text: str) -> str:
    """Return a date with the name of a month in English and single spaces between its parts.

    Example:
        >>> canonical_date("Mo, den 3. März 2024 10:30"), canonical_date("5 de agosto de 2024")
        ('3 Mar 2024 10:30', '5 Aug 2024')
    """
    decomposed = unicodedata.normalize("NFD", text.lower())
    plain = "".join(character for character in decomposed if unicodedata.category(character) != "Mn")
    words = (_WORDS.get(token, token) for token in _TOKEN.findall(plain))
    return " ".join(word for word in words if word)


def canonical_format(form: str) -> str:
    """Return the format of canonical dates for a format with the directive %B.

    Example:
        >>> canonical_format("%d. %B %Y, %H:%M")
        '%d %b %Y %H:%M'
    """
    parts = (part if part[0] == "%" else _WORDS.get(part.lower(), part.lower()) for part in _DIRECTIVES.findall(form))
    return " ".join("%b" if part == "%B" else part for part in parts if part)


def canonical_sql(cell: str) -> str:
    """Return the SQL expression of `canonical_date` of a cell."""
    names = ", ".join(f"'{name}': '{english}'" for name, english in _WORDS.items())
    tokens = f"regexp_extract_all(strip_accents(lower({cell})), '\\p{{L}}+|{_NUMBER}')"
    words = f"list_transform({tokens}, lambda t: coalesce(map {{{names}}}[t], t))"
    return f"array_to_string(list_filter({words}, lambda t: t <> ''), ' ')"


def named_format(text: str) -> str:
    """Return the format of a date with the name of a month, or "" for another text.

    Example:
        >>> named_format("3. März 2024"), named_format("Sun Feb 3 10:00:00 2024"), named_format("Mars 3")
        ('%d %B %Y', '%B %d %H:%M:%S %Y', '')
    """
    kinds, clock, place = "", "", 0
    for token in canonical_date(text).split():
        if token in _ENGLISH:
            kinds += "b"
        elif re.fullmatch("[0-9]{1,2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,6})?)?", token) and not clock:
            fraction = ".%f" * ("." in token)
            clock, place = "%H:%M" + ":%S" * (token.count(":") > 1) + fraction, len(kinds)
        elif token in ("am", "pm") and clock and place == len(kinds):
            clock = clock.replace("%H", "%I") + " %p"
        elif token.isascii() and token.isdigit():
            kinds += {1: "n", 2: "y" if kinds == "nb" else "n", 4: "Y"}.get(len(token), "?")
        else:
            return ""
    parts = list(_KINDS.get(kinds, ()))
    if not parts:
        return ""
    return " ".join([*parts[:place], *[clock] * bool(clock), *parts[place:]])
