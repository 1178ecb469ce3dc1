"""Words that dates and clocks are written with, in thirteen languages, as pieces of regular expressions."""

MONTH_HEADS = (
    "jan|feb|fév|mar|mär|apr|avr|abr|may|mai|mag|jun|juin|giu|jul|juil|lug|aug|aoû|ago|sep|set|oct|okt|ott|out|nov"
    "|dec|dez|déc|dic|ene|gen"
)
"""Of languages whose short forms are usual; any letters may follow."""

_WHOLE_MONTHS = (
    "maart|mei"
    "|stycznia|lutego|kwietnia|maja|czerwca|lipca|sierpnia|września|października|listopada|grudnia"
    "|января|февраля|марта|апреля|мая|июня|июля|августа|сентября|октября|ноября|декабря"
    "|ocak|şubat|nisan|mayıs|haziran|temmuz|ağustos|eylül|ekim|kasım|aralık"
)
MONTH = rf"(?:(?:{MONTH_HEADS})[a-zà-ÿ]*|(?:{_WHOLE_MONTHS})\b)"

_DAYS = (
    "mon|monday|tue|tues|tuesday|wed|wednesday|thu|thurs|thursday|fri|friday|sat|saturday|sun|sunday"
    "|montag|dienstag|mittwoch|donnerstag|freitag|samstag|sonnabend|sonntag"
    "|lundi|mardi|mercredi|jeudi|vendredi|samedi|dimanche"
    "|lunes|martes|miércoles|jueves|viernes|sábado|domingo"
    "|segunda-feira|terça-feira|quarta-feira|quinta-feira|sexta-feira"
    "|lunedì|martedì|mercoledì|giovedì|venerdì|sabato|domenica"
    "|maandag|dinsdag|woensdag|donderdag|vrijdag|zaterdag|zondag"
    "|poniedziałek|wtorek|środa|czwartek|piątek|sobota|niedziela"
    "|понедельник|вторник|среда|четверг|пятница|суббота|воскресенье"
    "|pazartesi|salı|çarşamba|perşembe|cuma|cumartesi|pazar"
)
_DAYS_OF_SIGNS = r"(?:星期|周|礼拜|週)[一二三四五六日天]|[月火水木金土日]曜日?|[월화수목금토일]요일"
DAY = rf"(?:(?<![^\W_])(?:{_DAYS})\b|{_DAYS_OF_SIGNS})"
DAY_IN_BRACKETS = "[月火水木金土日월화수목금토일][)）]"

HEADS = frozenset(
    head[:3]
    for head in (
        *MONTH_HEADS.split("|"),
        *_WHOLE_MONTHS.split("|"),
        *_DAYS.split("|"),
        *(f"{first}{day}" for first in ("星期", "周", "週") for day in "一二三四五六日天"),
        *(f"{day}曜日" for day in "月火水木金土日"),
        *(f"{day}요일" for day in "월화수목금토일"),
        *["the", "der", "den", "le", "el"],
    )
)
"""The first three letters of what may stand before a date's digits and belong to it."""

CLOCK_WORD = (
    r"(?:(?<![^\W_])|(?-i:(?<=[a-z])(?=[TDC])))"
    r"(?:(?:date|time|datetime|timestamp|epoch|now)(?:in)?(?:ms|millis(?:econds)?|seconds|nanos)?"
    r"|clock|todays?|unix|ts|datum"
    r"|uhrzeit|zeit|heute|jetzt|fecha|hora|hoy|ahora|heure|jour|aujourd['’]hui|maintenant|oggi|adesso|orario|hoje|agora"
    r"|data (?:attuale|corrente|odierna|di oggi|atual|de hoje)|vandaag|nu|tijd|dzisiaj|dziś|teraz|godzina"
    r"|сегодня|сейчас|дата|время|bugün|şimdi|tarih|saat)(?![^\W_])"
    r"|current (?:week|month|day)(?![^\W_])"
    r"|التاريخ|تاريخ|اليوم|الوقت|الساعة|الآن|امروز|تاریخ|ساعت|اکنون"
    r"|今天|今日|本日|现在|現在|当前|當前|日期|时间|時間|時刻|日時|日付|오늘|현재|지금|날짜|시간|시각|일시"
)
"""Before a date or a time it makes it a clock. Portuguese, Italian and Polish `data` alone is English as well."""

IT_IS = (
    r"it is|it['’]s|currently|as of|es ist|il est|nous sommes(?: le)?|son las|estamos a|são|è il|sono le|siamo il"
    r"|wir haben den|het is|generated (?:at|on)"
    r"|(?:run|session|conversation|chat|thread) (?:was |has )?(?:started|began|created|opened)(?: at| on|:)"
)
BETWEEN = (
    r"[ ,]*(?:at|um|à|às|a las|(?:alle )?ore|alle|om|в|(?:o )?godz\.|saat|on|the|der|den|le|el) "
    r"| [|·•–—-] |[ ,，]*(?:上午|下午|午前|午後|오전|오후) ?|[ ,，、T_(（-]{1,3}|\. ?|"
)
"""What may stand between the parts of one moment."""

AFTER_YEAR = r"(?: ?(?:г\.|года\b|roku\b|r\.))?"
DATES_WITH_SIGNS = (
    r"\d{4} ?年 ?\d{1,2} ?月(?: ?\d{1,2} ?日)?|\d{1,2} ?月 ?\d{1,2} ?日"
    r"|\d{4} ?년 ?\d{1,2} ?월(?: ?\d{1,2} ?일)?|\d{1,2} ?월 ?\d{1,2} ?일"
)
TIMES_WITH_SIGNS = (
    r"\d{1,2} ?[時时点點](?: ?\d{1,2} ?分)?(?: ?\d{1,2} ?秒)?|\d{1,2} ?시(?: ?\d{1,2} ?분)?(?: ?\d{1,2} ?초)?"
)
