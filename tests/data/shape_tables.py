"""The tables of `tests.data.shapes`: file and flags, then `name kind [size][@base][?missing%]`."""

_ADULT = """
age age, workclass text 8, fnlwgt count, education text 16, education-num count
marital-status text 7, occupation text 14, relationship text 6, race text 5, sex text 2
capital-gain gain, capital-loss gain, hours-per-week age, native-country text 41, income positive
"""

TABLES = {
    "avazu": """avazu.csv.gz
        id unique, click label, hour yymmddhh, C1 id 7@1001, banner_pos id 7, site_id hex 4737
        site_domain hex 7745, site_category hex 26, app_id hex 8552, app_domain hex 559
        app_category hex 36, device_id hex 2686408, device_ip hex 6729486, device_model hex 8251
        device_type id 5, device_conn_type id 4, C14 sparse 2626@375, C15 id 8@120, C16 id 9@20
        C17 sparse 435@112, C18 id 4, C19 sparse 68@33, C20 code 172, C21 sparse 60@1""",
    "criteo": """train.tsv --columns label,I{1..13},C{1..26}
        label label, I1 count ?45%, I2 signed, I3 count ?21%, I{4..13} count ?10%
        C1 hex 1460, C2 hex 583, C{3..26} hex 10131227?3%""",
    "criteo_torchrec": """criteo.parquet
        label label, int_{0..12} count, cat_{0..25} sparse 40000000""",
    "criteo_bars": """criteo.csv
        label label, I{1..13} real, C{1..26} sparse 5000000@40""",
    "criteo_attribution": """attribution.tsv.gz --label click
        timestamp clock, uid sparse 6142256, campaign sparse 675@73328, conversion other
        click label, cost money, cpo money, cat1 sparse 9@5824233, cat2 sparse 70
        cat{3..9} sparse 1829@1000""",
    "frappe_bars": """frappe.csv
        label label, user id 957, item id 4082@957, daytime id 7@5039, weekday id 7@5046
        isweekend id 2@5053, homework id 3@5055, cost id 2@5058, weather id 9@5060
        country id 80@5069, city id 233@5149""",
    "frappe_raw": """frappe.csv --label label
        label label, user id 957, item id 4082, cnt count, daytime text 7, weekday text 7
        isweekend text 2, homework text 3, cost text 2, weather text 9, country text 80
        city id 233""",
    "adult": "adult.csv" + _ADULT,
    "adult_without_names": "adult.data --columns age,workclass,fnlwgt,education,education-num,"
    "marital-status,occupation,relationship,race,sex,capital-gain,capital-loss,hours-per-week,"
    "native-country,income" + _ADULT,
    "census_kdd": """census.csv --label income --positive 50000+.
        age age, class_of_worker text 9, detailed_industry_recode id 52
        detailed_occupation_recode id 47, wage_per_hour gain, capital_gains gain
        stock_dividends gain, num_persons_worked_for_employer level 7, veterans_benefits id 3
        weeks_worked_in_year age, year id 2@94, income positive""",
    "bank": """semicolons.csv
        age age, job text 12, marital text 3, education text 4, default text 2, balance signed
        housing text 2, loan text 2, contact text 3, day id 31@1, month text 12, duration count
        poutcome text 4, y label""",
    "kuairand_log": """log.csv --label is_click --drop play_time_ms
        user_id sparse 27285, video_id sparse 7551, date yyyymmdd, hourmin id 24@1, time_ms ms
        is_click label, is_like other, is_follow other, is_comment other, is_forward other
        is_hate other, long_view other, play_time_ms other, duration_ms count
        is_profile_enter other, is_rand flag, tab id 15""",
    "kuairand_users": """users.parquet --label is_click
        user_id id 27285, is_click label, user_active_degree text 9, is_lowactive_period flag
        is_live_streamer flag, is_video_author flag, follow_user_num count
        follow_user_num_range text 8, fans_user_num count, fans_user_num_range text 9
        friend_user_num count, friend_user_num_range text 7, register_days count
        register_days_range text 7, onehot_feat{0..2} id 7, onehot_feat3 id 1076
        onehot_feat4 id 15, onehot_feat{5..17} id 34?2%, upload_type text 20
        server_width level 60@300, server_height level 90@300, video_duration count""",
    "taobao_display": """raw_sample.csv
        user sparse 1141729, time_stamp seconds, adgroup_id sparse 846811, pid text 2, nonclk leak
        clk label, cate_id sparse 12960, campaign_id sparse 423436, customer sparse 255875
        brand floats 99814@1?30%, price money, cms_segid id 97, cms_group_id id 13
        final_gender_code id 2@1, age_level id 7, pvalue_level floats 3@1?54%
        shopping_level id 3@1, occupation id 2, new_user_class_level floats 4@1?32%""",
    "taobao_behaviour": "UserBehavior.csv --columns user,item,category,behavior,time "
    """--label behavior --positive buy
        user sparse 987994, item sparse 4162024, category sparse 9439, behavior positive
        time seconds""",
    "tmall": """train.csv
        user_id sparse 424170, age_range floats 9?1%, gender floats 3?2%, merchant_id sparse 4995
        cat_id sparse 1658, brand_id sparse 8444, label label""",
    "mind": """mind.tsv
        impression_id unique, user_id text 711222, time iso, history words 800, news_id text 130379
        category text 17, subcategory text 285, abstract prose, click label""",
    "lastfm": """lastfm.csv
        userID sparse 1892, artistID sparse 17632, tagID sparse 11946, label label""",
    "amazon_reviews": """reviews.jsonl
        overall rating, verified bool, reviewerID text 22363, asin hex 12101, reviewText prose
        unixReviewTime seconds""",
    "amazon_electronics": """electronics.csv
        label label, user_id id 192403, item_id id 63001, cate_id id 801
        item_history carets 63001, cate_history carets 801""",
    "yelp": """review.jsonl.gz
        review_id unique, user_id hex 1987897, business_id hex 150346, stars rating, date iso
        text prose, review_count count, fans count, average_stars money, city text 1400
        categories json 1300, latitude real, longitude real, is_open flag""",
    "book_crossing": """semicolons.csv --label Book-Rating
        User-ID sparse 278858, ISBN hex 271379, Book-Rating rating, Age age ?30%
        Location text 800, Year-Of-Publication level 100@1900, Publisher text 900""",
    "outbrain": """clicks.csv.bz2
        display_id sparse 16874593, ad_id sparse 478950, clicked label, uuid hex 20000
        document_id sparse 2999334, timestamp clock, platform id 3@1, geo_location text 2988
        campaign_id sparse 34675, advertiser_id sparse 4385, source_id floats 14394?1%
        publisher_id floats 1259?2%""",
    "ipinyou": """ipinyou.tsv
        click label, weekday id 7, hour id 24, bidid unique, timestamp ms, logtype const
        ipinyouid hex 10000, useragent text 40, IP hex 5000, region id 35, city id 370
        adexchange id 5@1, domain hex 24000, url hex 9000, slotid text 8000, slotwidth level 21@90
        slotheight level 14@60, slotvisibility id 11, slotformat id 4, slotprice count
        creative hex 131, keypage hex 19, advertiser id 5@1458, usertag bars 69""",
    "movielens": """ratings.csv
        userId sparse 330975, movieId sparse 83239, rating rating, timestamp seconds""",
    "movielens_1m": """tabs.csv
        user_id id 6040, movie_id id 3706, rating rating, timestamp seconds, gender text 2
        age level 7@18, occupation id 21, zip_code sparse 3439@10000, genres bars 18""",
    "tenrec": """tenrec.parquet --label click,like
        user_id sparse 5022750, item_id sparse 3753436, click label, follow other, like label
        share other, video_category id 2, watching_times count, gender id 3, age level 8
        hist_{1..10} sparse 3753436""",
    "aliccp": """aliccp.csv.zst --label click,purchase
        click label, purchase label, 101 sparse 238635, 121 id 98, 122 id 14, 124 id 3, 125 id 8
        126 id 4, 127 id 4, 128 id 3, 129 id 5, 205 sparse 467298, 206 sparse 6929
        207 sparse 263942, 216 sparse 106399, 508 sparse 5888, 509 sparse 104830
        702 sparse 51878, 853 sparse 37148, 301 id 4""",
    "talkingdata": """clicks.parquet
        ip sparse 277396, app id 706, device id 3475, os id 800, channel id 202, click_time stamp
        is_attributed label""",
    "kddcup_2012": """track2.tsv
        Click label, DisplayURL hash 26273, AdID sparse 641707, AdvertiserID sparse 14847
        Depth id 3@1, Position id 3@1, QueryID sparse 24122076, KeywordID sparse 1188089
        TitleID sparse 3735796, DescriptionID sparse 2934101, UserID sparse 22023547""",
    "kkbox": """kkbox.csv
        msno hex 30755, song_id hex 359966, source_system_tab text 8, source_screen_name text 20
        source_type text 12, target label, song_length count, genre_ids bars 191
        artist_name text 40587, language floats 10@3, city id 21, registered_via id 5@3
        registration_init_time yyyymmdd""",
    "expedia": """expedia.csv --label click_bool
        srch_id sparse 399344, date_time iso, site_id id 34@1, visitor_location_country_id id 218
        visitor_hist_starrating money ?90%, prop_country_id id 172, prop_id sparse 136886
        prop_starrating level 6, prop_review_score real, prop_brand_bool flag
        prop_location_score1 real, price_usd money, promotion_flag flag
        srch_destination_id sparse 23715, srch_length_of_stay count, srch_booking_window count
        srch_adults_count level 9@1, srch_children_count level 9, srch_room_count level 8@1
        srch_saturday_night_bool flag, orig_destination_distance money ?30%, random_bool flag
        click_bool label, booking_bool other""",
    "huawei": """huawei.csv
        label label, uid sparse 1100000, task_id id 5000@2112, adv_id id 5700@1000
        creat_type_cd id 9@2, adv_prim_id id 170@101, dev_id id 80@10, inter_type_cd id 4@2
        slot_id id 15@11, spread_app_id id 100@11, tags id 38@3, app_first_class id 3@2
        app_second_class id 20@11, age level 6@2, city id 340@100, city_rank id 4@2
        device_name id 85@11, device_size id 70@100, career id 9@1, gender id 3@2
        net_type id 6@2, residence id 34@11, emui_dev id 27@11, indu_name id 40@10
        up_membership_grade id 5@0""",
    "tiktok": "tiktok.tsv --columns uid,user_city,item_id,author_id,item_city,channel,"
    """finish,like,music_id,device,time,duration_time --label finish
        uid sparse 73974, user_city code 396, item_id sparse 4122689, author_id sparse 850308
        item_city code 461, channel id 5, finish label, like other, music_id sparse 89779
        device sparse 75085, time clock, duration_time count""",
    "wechat": """wechat.csv --label like
        userid sparse 20000, feedid sparse 106444, device id 2@1, date_ id 15@1, like label
        forward other, favorite other, comment other, authorid sparse 18789, videoplayseconds count
        bgm_song_id floats 25159?5%, bgm_singer_id floats 17500?5%""",
    "diginetica": """semicolons.csv
        sessionId sparse 600000, userId floats 200000?60%, itemId sparse 184047, timeframe count
        eventdate iso, categoryId id 1217, pricelog2 level 20, purchased label""",
    "hm": """hm.parquet
        t_dat stamp, customer_id hex 1371980, article_id sparse 105542@108775015, price money
        sales_channel_id id 2@1, age age ?1%, club_member_status text 3, FN text 3
        postal_code hex 352899, product_code sparse 47224@108775, product_type_no id 132@49
        graphical_appearance_no sparse 30@1010000, colour_group_code id 50
        perceived_colour_value_id id 8, department_no sparse 299@1000, index_code text 10
        garment_group_no id 21@1001, bought label""",
    "home_credit": """credit.csv
        SK_ID_CURR unique, TARGET label, NAME_CONTRACT_TYPE text 2, CODE_GENDER text 3
        FLAG_OWN_CAR text 2, CNT_CHILDREN count, AMT_INCOME_TOTAL count, AMT_CREDIT money
        DAYS_BIRTH signed, DAYS_EMPLOYED signed, OWN_CAR_AGE age ?60%, FLAG_MOBIL flag
        OCCUPATION_TYPE text 18, CNT_FAM_MEMBERS count, REGION_RATING_CLIENT level 3@1
        HOUR_APPR_PROCESS_START id 24, ORGANIZATION_TYPE text 58, EXT_SOURCE_1 real
        OBS_30_CNT_SOCIAL_CIRCLE count, FLAG_DOCUMENT_{2..8} flag
        AMT_REQ_CREDIT_BUREAU_YEAR count""",
    "misleading_ids": """misleading.parquet
        target label, rate_plan id 40, age_group id 12, size_code sparse 900, days_type id 5
        price_band id 20, total_id sparse 50000, amount_code id 300, length hash 2000
        score_level id 11, count_class id 15, discount_code sparse 800, hours_slot id 24
        bid_id sparse 9000, clicks_bucket id 20, cost id 2, qty_range id 9""",
    "misleading_quantities": """misleading.csv
        clicked label, item_price count, user_age age, num_items count, ad_cost count
        device_hours count, city_income count, count_of_users count, days_since_order count
        views_per_user count, category_count count, product_rate real, brand_spend count
        total_products count, campaign_budget count, sku_qty count""",
    "anonymous": """anonymous.parquet
        y label, f{0..9} sparse 3000, g{0..9} signed, h{0..4} real, x{0..4} id 50, z gain
        sample_weight weight""",
    "pandas": """pandas.parquet
        Unnamed unique, user floats 800?5%, item floats 2000?5%, value money ?5%, country const
        note empty, is_new bool, tags list 50, more json 40, vector vectors, nested objects
        label label, created_at stamp""",
}
